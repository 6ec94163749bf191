#!/usr/bin/env bash
# CoreDNS: gives services and pods their names.
name=coredns version=1.15.0
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/coredns/coredns "v$version"
