//! `highwater replica`: one replica of one partition, on the node that has it.
//!
//! What holds: a pause is the agent's own and ends with it.

use std::io::Write;

use clap::{Args, Subcommand};
use highwater_client::{PartitionRef, TopicRef};
use highwater_types::NodeId;
use serde::Serialize;

use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat, json_line};
use crate::reassign::Target;

/// Pauses and resumes a replica.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaCommand {
    /// Has a replica fetch no more, until it is resumed or its node's follower-agent is started again. While records are
    /// written it leaves the in-sync set; what it has stays readable.
    Pause(ReplicaArgs),
    /// Has a replica fetch again that was paused, or that failed for good.
    Resume(ReplicaArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ReplicaArgs {
    /// The partition.
    #[arg(value_name = "TOPIC:PARTITION")]
    partition: Target,
    /// The node whose replica is meant.
    #[arg(long, value_name = "NODE")]
    node: NodeId,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Done {
    topic: String,
    partition: i32,
    node: i32,
    paused: bool,
    /// Whether it was otherwise before.
    changed: bool,
}

impl ReplicaCommand {
    /// Carries the command out.
    ///
    /// # Errors
    /// [`CommandError`].
    pub(crate) async fn run(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        let (args, pauses) = match self {
            Self::Pause(args) => (args, true),
            Self::Resume(args) => (args, false),
        };
        let Target { topic, partition } = &args.partition;
        let Some(partition) = *partition else {
            return Err(CommandError::Usage(format!("which partition of {topic}? {topic}:0 is one")));
        };
        let (client, node) = (args.connection.client(ASK_TIMEOUT)?, args.node);
        let replica = PartitionRef { topic: TopicRef::Name(topic.clone()), partition };
        let changed = match self {
            Self::Pause(_) => client.pause_replica(&replica, node).await,
            Self::Resume(_) => client.resume_replica(&replica, node).await,
        };
        let what = if pauses { "pause" } else { "resume" };
        let changed = changed.map_err(|error| {
            CommandError::cluster(format!("{what} the replica of {} on node {node}", args.partition), error)
        })?;
        let done = Done {
            topic: topic.to_string(),
            partition: partition.get(),
            node: node.get(),
            paused: pauses,
            changed,
        };
        print(&done, args.output.output, out)
    }
}

fn print(done: &Done, output: OutputFormat, out: &mut dyn Write) -> Result<(), CommandError> {
    if output == OutputFormat::Json {
        return Ok(json_line(out, done)?);
    }
    let Done { topic, partition, node, paused, changed } = done;
    let state = match (paused, changed) {
        (true, true) => "paused",
        (true, false) => "paused already",
        (false, true) => "resumed",
        (false, false) => "was not paused; it is tried again at once if it had failed",
    };
    Ok(writeln!(out, "{topic}-{partition} on node {node}: {state}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_so_already_is_told_apart() {
        let told = |paused, changed| {
            let done = Done { topic: "t".to_owned(), partition: 1, node: 2, paused, changed };
            let mut out = Vec::new();
            print(&done, OutputFormat::Text, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(told(true, true), "t-1 on node 2: paused\n");
        assert_eq!(told(true, false), "t-1 on node 2: paused already\n");
        assert_eq!(told(false, true), "t-1 on node 2: resumed\n");
        assert!(told(false, false).contains("was not paused"));
    }
}
