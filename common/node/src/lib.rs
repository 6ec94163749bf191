//! What both programs share as processes: configuration, signals, draining, health and reflection.
