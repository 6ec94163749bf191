//! `highwater throttle`: how fast replicas that are catching up may replicate, changed while the cluster runs.
//!
//! What holds: a rate needs its unit, here as on the wire; what is shown is what the coordination store records, not the
//! settings that nodes were started with.

mod view;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use highwater_client::{ClearThrottle, LONGEST_TTL, SHORTEST_TTL, SetThrottle};
use highwater_types::{ByteRate, NodeId, ThrottleSide, ThrottledReplicas, units};

use self::view::{ThrottleRow, print};
use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::figures::time;
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat, json_line};

/// Throttles replication.
#[derive(Debug, Subcommand)]
pub(crate) enum ThrottleCommand {
    /// Sets how fast replicas that are catching up may replicate; replicas in sync and consumers are never held back. A node
    /// has one throttle a side: the new one replaces it, with its replicas and its time to live.
    Set(SetArgs),
    /// Removes throttles that were set; the nodes' own settings hold again.
    Clear(ClearArgs),
    /// Shows the throttles that were set and how long they still hold; not the nodes' own settings, which hold where none
    /// was.
    Show(ShowArgs),
}

/// Which nodes.
#[derive(Args, Debug)]
struct NodesArgs {
    /// The nodes; without it every registered one.
    #[arg(long = "nodes", value_name = "NODE[,NODE]", value_delimiter = ',')]
    nodes: Vec<NodeId>,
}

/// The rates: one at least.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct RateArgs {
    /// How much each node sends to followers that are catching up, for example 8MB/s; without it that side stays as it is.
    #[arg(long, value_name = "RATE")]
    leader_rate: Option<ByteRate>,
    /// How much each node fetches while it is catching up, for example 8MB/s; without it that side stays as it is.
    #[arg(long, value_name = "RATE")]
    follower_rate: Option<ByteRate>,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    #[command(flatten)]
    rates: RateArgs,
    /// The replicas that count: '*' for all of a node's, or topics and single partitions, which have to be there.
    #[arg(long, value_name = "TOPIC[:PARTITION][,…]", default_value = "*")]
    replicas: ThrottledReplicas,
    /// After how long it removes itself, for example 30min; without it, it stays until it is cleared.
    #[arg(long, value_name = "TIME", value_parser = time_to_live)]
    ttl: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

fn time_to_live(text: &str) -> Result<Duration, String> {
    let ttl = units::parse_duration(text)?;
    let allowed = SHORTEST_TTL..=LONGEST_TTL;
    if allowed.contains(&ttl) {
        return Ok(ttl);
    }
    let [least, most] = [allowed.start(), allowed.end()].map(|bound| time(*bound));
    // A number alone counts milliseconds, which is rarely what was meant by a small one.
    Err(format!("that is {}: {least} to {most} is allowed, for example 30min", time(ttl)))
}

/// See [`ThrottleSide`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Side {
    /// What nodes send.
    Leader,
    /// What nodes fetch.
    Follower,
}

#[derive(Args, Debug)]
pub(crate) struct ClearArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    /// Which side; without it both.
    #[arg(long, value_enum)]
    side: Option<Side>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl ThrottleCommand {
    /// Carries the command out.
    ///
    /// # Errors
    /// [`CommandError`].
    pub(crate) async fn run(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            Self::Set(args) => set(args, out).await,
            Self::Clear(args) => clear(args, out).await,
            Self::Show(args) => show(args, out).await,
        }
    }
}

async fn set(args: &SetArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let set = SetThrottle {
        nodes: args.nodes.nodes.clone(),
        leader: args.rates.leader_rate,
        follower: args.rates.follower_rate,
        replicas: args.replicas.clone(),
        ttl: args.ttl,
    };
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed = |error| CommandError::cluster("set the throttle", error);
    let before = client.throttles().await.map_err(failed)?;
    let now = client.set_throttle(&set).await.map_err(failed)?;
    list(view::set_rows(&now, &before), args.output, out)
}

async fn clear(args: &ClearArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let sides = match args.side {
        Some(Side::Leader) => BTreeSet::from([ThrottleSide::Leader]),
        Some(Side::Follower) => BTreeSet::from([ThrottleSide::Follower]),
        None => BTreeSet::from(ThrottleSide::BOTH),
    };
    let clear = ClearThrottle { nodes: args.nodes.nodes.clone(), sides };
    let client = args.connection.client(ASK_TIMEOUT)?;
    let nodes =
        client.clear_throttle(&clear).await.map_err(|e| CommandError::cluster("clear the throttle", e))?;
    list(view::rows(&nodes), args.output, out)
}

async fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let throttles = client.throttles().await;
    let mut throttles = throttles.map_err(|e| CommandError::cluster("show the throttles", e))?;
    let asked = &args.nodes.nodes;
    if let Some(unknown) = asked.iter().find(|node| !throttles.nodes.iter().any(|r| r.node == **node)) {
        return Err(CommandError::Failed(format!("node {unknown} is not registered")));
    }
    throttles.nodes.retain(|record| asked.is_empty() || asked.contains(&record.node));
    list(view::rows(&throttles), args.output, out)
}

fn list(rows: Vec<ThrottleRow>, output: OutputArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    match output.output {
        OutputFormat::Json => rows.iter().try_for_each(|row| json_line(out, row))?,
        OutputFormat::Text => print(&rows, out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        set: SetArgs,
    }

    #[test]
    fn a_time_to_live_that_may_not_be_is_shown_as_it_was_understood() {
        assert_eq!(time_to_live("30min"), Ok(Duration::from_mins(30)));
        let refused = time_to_live("5").unwrap_err();
        assert!(refused.starts_with("that is 5") && refused.contains("ms: 1.00 s to"), "{refused}");
    }

    #[test]
    fn without_a_rate_both_flags_are_named_and_one_is_enough() {
        let refused = Line::try_parse_from(["set", "--nodes", "1"]).unwrap_err().to_string();
        assert!(refused.contains("--leader-rate") && refused.contains("--follower-rate"), "{refused}");
        let one = Line::try_parse_from(["set", "--follower-rate", "8MB/s"]).unwrap();
        assert_eq!((one.set.rates.leader_rate, one.set.rates.follower_rate.is_some()), (None, true));
        assert!(Line::try_parse_from(["set", "--follower-rate", "8MB/s", "--leader-rate", "1MB/s"]).is_ok());
    }
}
