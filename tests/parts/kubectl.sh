#!/usr/bin/env bash
# kubectl, with kustomize in it: applies manifests as a person does.
name=kubectl version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
