//! `highwater elect`: has another replica lead a partition.
//!
//! What holds: without loss, unless `--unclean` asks for it; the command ends once the leader leads.

use std::io::Write;

use clap::Args;
use highwater_client::ClientError;
use highwater_types::{NodeId, PartitionRecord, TopicPartition};
use serde::Serialize;

use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat, json_line};

#[derive(Args, Debug)]
pub(crate) struct ElectArgs {
    /// The partition, as TOPIC-NUMBER or TOPIC:NUMBER.
    #[arg(value_name = "PARTITION", value_parser = partition)]
    partition: TopicPartition,
    /// The leader hands over to the preferred replica, the first of the list: what happens without a flag, too.
    #[arg(long, conflicts_with = "unclean")]
    preferred: bool,
    /// A replica leads that may lack acknowledged records, because nobody in sync is left to lead. What it lacks is lost.
    #[arg(long)]
    unclean: bool,
    /// The node that is to lead uncleanly; needed where several replicas live.
    #[arg(long, value_name = "NODE", requires = "unclean")]
    node: Option<NodeId>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Elected {
    partition: String,
    leader: i32,
    leader_epoch: Option<i32>,
    /// The loss report; absent where nothing was lost.
    lost: Option<Lost>,
}

/// What an unclean election lost, as far as is known now: those who were passed over tell it exactly once they are back.
#[derive(Debug, Serialize)]
struct Lost {
    /// What others held from this offset on is lost.
    from_offset: i64,
    /// The nodes that held it.
    passed_over: Vec<i32>,
}

fn partition(text: &str) -> Result<TopicPartition, String> {
    // A topic's name holds no colon, and `reassign` takes one.
    TopicPartition::from_directory_name(&text.replacen(':', "-", 1))
        .ok_or_else(|| "a topic's name, '-' or ':', and a number, as in orders-0".to_owned())
}

pub(crate) async fn run(args: &ElectArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed =
        |error: ClientError| CommandError::cluster(format!("elect a leader of {}", args.partition), error);
    let node = if args.unclean {
        client.elect_unclean(&args.partition, args.node).await
    } else {
        client.elect_preferred(&args.partition).await
    };
    let node = node.map_err(failed)?;
    let record = client.until_led_by(&args.partition, node).await.map_err(failed)?;
    print(&elected(&args.partition, node, &record), args.output.output, out)
}

fn elected(partition: &TopicPartition, node: NodeId, record: &PartitionRecord) -> Elected {
    let unclean = record.unclean.as_ref().filter(|unclean| Some(unclean.epoch) == record.leader_epoch);
    Elected {
        partition: partition.to_string(),
        leader: node.get(),
        leader_epoch: record.leader_epoch.map(|epoch| epoch.get()),
        lost: unclean.map(|unclean| Lost {
            from_offset: unclean.log_end.get(),
            passed_over: unclean.passed_over.iter().map(|member| member.node.get()).collect(),
        }),
    }
}

fn print(elected: &Elected, output: OutputFormat, out: &mut dyn Write) -> Result<(), CommandError> {
    if output == OutputFormat::Json {
        return Ok(json_line(out, elected)?);
    }
    let epoch = elected.leader_epoch.map_or_else(|| "?".to_owned(), |epoch| epoch.to_string());
    writeln!(out, "{}: node {} leads in epoch {epoch}", elected.partition, elected.leader)?;
    if let Some(lost) = &elected.lost {
        let others = lost.passed_over.iter().filter(|node| **node != elected.leader);
        let nodes: Vec<_> = others.map(ToString::to_string).collect();
        let who = match &nodes[..] {
            [] => format!("node {} itself had before", elected.leader),
            [node] => format!("node {node} had"),
            nodes => format!("nodes {} had", nodes.join(", ")),
        };
        writeln!(
            out,
            "{}: what {who} from offset {} on, if anything, is lost; `topics describe` tells how much, once they are back",
            elected.partition, lost.from_offset
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::partition;

    #[test]
    fn a_partition_is_named_as_its_directory_is_or_as_reassign_names_it() {
        let named = |text| partition(text).map(|partition| partition.to_string());
        assert_eq!(named("a-1:2"), named("a-1-2"));
        assert_eq!(named("a-1:2").as_deref(), Ok("a-1-2"));
        assert!(named("orders").is_err() && named("a:b:1").is_err() && named(":1").is_err());
    }
}
