#!/usr/bin/env bash
# etcd: one of the stores that a cluster is coordinated by, and what the API server keeps its objects in.
name=etcd version=3.4
. "$(dirname "$0")/lib.sh"
present || packages "etcd-server=$version"
