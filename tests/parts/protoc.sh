#!/usr/bin/env bash
# protoc, which the build of etcd's client runs, with the definitions that come with it. Not installed in the system, it
# has to be told where its libraries are; its definitions it finds by itself.
name=protoc version=3.21
. "$(dirname "$0")/lib.sh"
present && exit
unpack "protobuf-compiler=$version" "libprotoc32=$version" "libprotobuf32=$version" "libprotobuf-dev=$version"
cat >"$work/out/protoc" <<'SCRIPT'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu) exec "$here/usr/bin/protoc" "$@"
SCRIPT
chmod +x "$work/out/protoc"
finish "$work/out"
