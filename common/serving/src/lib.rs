//! What both programs serve: the read path, the long poll and the description of the cluster.
