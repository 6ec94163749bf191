//! `highwater throttle`: how fast replicas that are catching up may replicate, changed while the cluster runs.
//!
//! What holds: a rate needs its unit, here as on the wire; what is shown is what the coordination store records, not the
//! settings that nodes were started with.

mod view;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use highwater_client::{ClearThrottle, SetThrottle};
use highwater_types::{ByteRate, NodeId, NodeRecord, ThrottleSide, ThrottledReplicas, units};

use self::view::{ThrottleRow, print};
use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat, json_line};

/// Throttles replication.
#[derive(Debug, Subcommand)]
pub(crate) enum ThrottleCommand {
    /// Sets how fast replicas that are catching up may replicate; replicas in sync and consumers are never held back.
    Set(SetArgs),
    /// Removes throttles that were set; the nodes' own settings hold again.
    Clear(ClearArgs),
    /// Shows the throttles that were set; not the nodes' own settings, which hold where none was.
    Show(ShowArgs),
}

/// Which nodes.
#[derive(Args, Debug)]
struct NodesArgs {
    /// The nodes; without it every registered one.
    #[arg(long = "nodes", value_name = "NODE[,NODE]", value_delimiter = ',')]
    nodes: Vec<NodeId>,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    /// How much each node sends to followers that are catching up, for example 8MB/s.
    #[arg(long, value_name = "RATE", required_unless_present = "follower_rate")]
    leader_rate: Option<ByteRate>,
    /// How much each node fetches while it is catching up, for example 8MB/s.
    #[arg(long, value_name = "RATE")]
    follower_rate: Option<ByteRate>,
    /// The replicas that count: '*' for all of a node's, or topics and single partitions.
    #[arg(long, value_name = "TOPIC[:PARTITION][,…]", default_value = "*")]
    replicas: ThrottledReplicas,
    /// After how long it removes itself, for example 30min; without it, it stays until it is cleared.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
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
        leader: args.leader_rate,
        follower: args.follower_rate,
        replicas: args.replicas.clone(),
        ttl: args.ttl,
    };
    let client = args.connection.client(ASK_TIMEOUT)?;
    let nodes = client.set_throttle(&set).await.map_err(|e| CommandError::cluster("set the throttle", e))?;
    list(&nodes, args.output, out)
}

async fn clear(args: &ClearArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let sides = match args.side {
        Some(Side::Leader) => BTreeSet::from([ThrottleSide::Leader]),
        Some(Side::Follower) => BTreeSet::from([ThrottleSide::Follower]),
        None => BTreeSet::from([ThrottleSide::Leader, ThrottleSide::Follower]),
    };
    let clear = ClearThrottle { nodes: args.nodes.nodes.clone(), sides };
    let client = args.connection.client(ASK_TIMEOUT)?;
    let nodes =
        client.clear_throttle(&clear).await.map_err(|e| CommandError::cluster("clear the throttle", e))?;
    list(&nodes, args.output, out)
}

async fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let cluster = client.describe_cluster().await;
    let mut nodes = cluster.map_err(|e| CommandError::cluster("show the throttles", e))?.nodes;
    let asked = &args.nodes.nodes;
    if let Some(unknown) = asked.iter().find(|node| !nodes.iter().any(|record| record.node == **node)) {
        return Err(CommandError::Failed(format!("node {unknown} is not registered")));
    }
    nodes.retain(|record| asked.is_empty() || asked.contains(&record.node));
    list(&nodes, args.output, out)
}

fn list(nodes: &[NodeRecord], output: OutputArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let rows: Vec<ThrottleRow> = nodes.iter().flat_map(ThrottleRow::of_node).collect();
    match output.output {
        OutputFormat::Json => rows.iter().try_for_each(|row| json_line(out, row))?,
        OutputFormat::Text => print(&rows, out)?,
    }
    Ok(())
}
