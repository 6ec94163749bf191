//! The leader-svc program.

fn main() {}
