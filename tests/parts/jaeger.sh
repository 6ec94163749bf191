#!/usr/bin/env bash
# Jaeger (the v2 binary, all in one): takes traces by OTLP, answers searches. Without its web pages, which no registry has.
name=jaeger version=1.76.0
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/jaegertracing/jaeger/cmd/jaeger "v$version"
