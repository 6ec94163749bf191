#!/usr/bin/env bash
# An OpenTelemetry collector with just the components named in otelcol.builder.yaml.
name=otelcol version=0.165.0
. "$(dirname "$0")/lib.sh"
present && exit
need go "a Go toolchain"
scratch
generate() { # the builder writes main.go and components.go; its own go.mod handling would fetch what only tests use
  go run "go.opentelemetry.io/collector/cmd/builder@v$version" \
    --config "$here/otelcol.builder.yaml" --skip-compilation --skip-get-modules &&
    go mod init part &&
    go get "go.opentelemetry.io/collector/otelcol@v$version" $(awk '$2 == "gomod:" { print $3 "@" $4 }' "$here/otelcol.builder.yaml")
}
(cd "$work" && generate && CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o out/otelcol .) \
  >"$parts/$name.log" 2>&1 || { tail -n 20 "$parts/$name.log" >&2; exit 1; }
finish "$work/out"
