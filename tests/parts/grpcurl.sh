#!/usr/bin/env bash
# grpcurl: gRPC by hand, over reflection v1.
name=grpcurl version=1.9.4
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/fullstorydev/grpcurl/cmd/grpcurl "v$version"
