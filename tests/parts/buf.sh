#!/usr/bin/env bash
# buf: lints the .proto files and finds changes that break old clients.
name=buf version=1.75.0
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/bufbuild/buf/cmd/buf "v$version"
