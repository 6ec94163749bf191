//! Leads partitions: produce, fetch, and the control of a topic.
