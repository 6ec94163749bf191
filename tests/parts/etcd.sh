#!/usr/bin/env bash
# etcd: what the API server keeps its objects in.
name=etcd version=3.4
. "$(dirname "$0")/lib.sh"
present || packages "etcd-server=$version"
