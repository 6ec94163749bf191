//! The follower-agent program.

fn main() {}
