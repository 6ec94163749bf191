//! Logging set-up and the names of spans and metrics.
