//! Follows partitions: pulls, checks, appends, and acknowledges by its next fetch.
