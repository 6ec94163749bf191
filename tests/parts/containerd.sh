#!/usr/bin/env bash
# What runs containers on a node: containerd and runc, the plugins that connect them, and nft for kube-proxy.
name=containerd version=1.6
. "$(dirname "$0")/lib.sh"
present || packages containerd=1.6 runc=1.1 containernetworking-plugins=1.1 \
  nftables=1.0 libnftables1=1.0 libnftnl11=1.2 libmnl0=1.0 libjansson4=2.14
