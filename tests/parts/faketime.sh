#!/usr/bin/env bash
# libfaketime: a preloaded library that sets a process's wall clock off.
name=faketime version=0.9.10
. "$(dirname "$0")/lib.sh"
present || packages "faketime=$version" "libfaketime=$version"
