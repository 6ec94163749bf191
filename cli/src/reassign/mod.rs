//! `highwater reassign`: moves partitions to other nodes, to more of them or to fewer, and shows how far that is.
//!
//! What holds: the command records what is wanted; the partitions' leaders do it, whether or not somebody waits. Every
//! partition is changed for itself: one that is refused keeps no other from moving. Progress goes to standard error.

mod progress;
mod target;
mod view;

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use highwater_client::{Assignment, Client, ClientError, DescribedTopic, PartitionRef, TopicRef};
use highwater_types::{NodeId, PartitionIndex, TopicName, units};

use self::progress::{Aim, Awaited, follow};
pub(crate) use self::target::Target;
use self::view::{AddedRow, ChangeRow, print_added, print_changes};
use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::outcome::{CommandError, Verdict};
use crate::output::{OutputArgs, OutputFormat, json_line};

/// Moves replicas.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ReassignArgs {
    #[command(subcommand)]
    command: Option<ReassignCommand>,
    /// A topic with all its partitions, or one partition. A topic whose name is that of a subcommand is named by partition.
    #[arg(value_name = "TOPIC[:PARTITION]", required = true)]
    target: Option<Target>,
    /// The nodes that are to hold the replicas, the preferred leader first. Of a topic, each partition begins with the next one
    /// of them, so that leaders are spread. Added replicas catch up first, under the throttle of replication if one is set
    /// (`highwater throttle`); then those that are not in the list leave, and their files are deleted.
    #[arg(long, value_name = "NODE[,NODE]", value_delimiter = ',', required_unless_present = "cancel")]
    replicas: Vec<NodeId>,
    /// Goes back to the replicas of before, of what is being moved.
    #[arg(long, conflicts_with = "replicas")]
    cancel: bool,
    /// Waits until it is done and shows how far it is: at most so long, for example --wait=30min, or until it is interrupted.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        value_parser = units::parse_duration,
        conflicts_with = "cancel"
    )]
    wait: Option<Option<Duration>>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Subcommand)]
enum ReassignCommand {
    /// Shows what is being moved, and how far each added replica is.
    #[command(visible_alias = "status")]
    List(ListArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    /// The topics; without any, all.
    topics: Vec<TopicName>,
    /// Looks again and again, until nothing is being moved any more.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Carries the command out.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn run(args: &ReassignArgs, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    match (&args.command, &args.target) {
        (Some(ReassignCommand::List(args)), _) => list(args, out).await,
        (None, Some(target)) if args.cancel => cancel(args, target, out).await,
        (None, Some(target)) => begin(args, target, out).await,
        (None, None) => Err(CommandError::Usage("a topic or a partition is needed".to_owned())),
    }
}

async fn begin(args: &ReassignArgs, target: &Target, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed = |error| CommandError::cluster(format!("reassign {target}"), error);
    let topic = client.describe_topic(&target.topic).await.map_err(failed)?;
    let wanted: Vec<Assignment> = target
        .partitions(&topic)?
        .into_iter()
        .map(|index| Assignment {
            partition: partition_of(&topic, index),
            replicas: target.replicas_of(index, &args.replicas),
        })
        .collect();
    let answers = client.reassign(&wanted).await.map_err(failed)?;
    let (min_isr, copies) = (topic.record.properties.min_insync_replicas, args.replicas.len());
    if usize::try_from(min_isr).is_ok_and(|min_isr| copies < min_isr) {
        // That nobody listens there is no failure.
        let _ = writeln!(
            std::io::stderr(),
            "warning: min.insync.replicas of {} is {min_isr}; with fewer replicas than that, acks=all waits for all there are",
            target.topic
        );
    }
    let asked: Vec<_> = wanted.iter().map(|assignment| assignment.partition.partition).collect();
    let rows: Vec<_> =
        asked.iter().zip(&answers).map(|(at, told)| ChangeRow::of(&topic, *at, told)).collect();
    print_changes(&rows, args.output.output, out)?;
    let Some(bound) = args.wait else { return Ok(ChangeRow::verdict(&rows)) };
    let moving = asked.iter().zip(&answers).filter_map(|(at, told)| {
        let record = told.as_ref().ok()?;
        Some((*at, Aim { replicas: record.target_replicas(), since: record.partition_epoch }))
    });
    let awaited = Awaited { topic: target.topic.clone(), partitions: moving.collect() };
    follow(&client, Some(&awaited), &[], bound, out).await?;
    let missed = missed(&client, &awaited).await.map_err(failed)?;
    match missed {
        None => {
            if !awaited.partitions.is_empty() {
                // That nobody listens there is no failure.
                let _ = writeln!(std::io::stderr(), "done, partitions: {}", awaited.partitions.len());
            }
            Ok(ChangeRow::verdict(&rows))
        }
        Some(missed) => Err(CommandError::Failed(missed)),
    }
}

/// The first partition that has other replicas than those that were awaited.
async fn missed(client: &Client, awaited: &Awaited) -> Result<Option<String>, ClientError> {
    let topic = client.describe_topic(&awaited.topic).await?;
    Ok(topic.partitions.iter().find_map(|partition| {
        let record = &partition.record;
        let wanted = awaited.partitions.get(&record.partition)?;
        (record.replicas != wanted.replicas).then(|| {
            let (name, number) = (&awaited.topic, record.partition);
            format!(
                "{name}-{number} was moved elsewhere meanwhile: its replicas are {}",
                view::nodes(&record.replicas)
            )
        })
    }))
}

async fn cancel(args: &ReassignArgs, target: &Target, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed = |error| CommandError::cluster(format!("cancel the reassignment of {target}"), error);
    let topic = client.describe_topic(&target.topic).await.map_err(failed)?;
    let mut asked = target.partitions(&topic)?;
    if target.partition.is_none() {
        let is_moved = |index: &PartitionIndex| {
            topic.partitions.iter().any(|p| p.record.partition == *index && p.record.is_being_moved())
        };
        asked.retain(is_moved);
    }
    if asked.is_empty() {
        return Err(CommandError::Failed(format!("no partition of {target} is being moved")));
    }
    let partitions: Vec<_> = asked.iter().map(|index| partition_of(&topic, *index)).collect();
    let answers = client.cancel_reassignment(&partitions).await.map_err(failed)?;
    let rows: Vec<_> =
        asked.iter().zip(&answers).map(|(at, told)| ChangeRow::of(&topic, *at, told)).collect();
    print_changes(&rows, args.output.output, out)?;
    Ok(ChangeRow::verdict(&rows))
}

async fn list(args: &ListArgs, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    if args.watch {
        return follow(&client, None, &args.topics, None, out).await.map(|()| Verdict::Good);
    }
    let view = client.reassignments(&args.topics).await;
    let view = view.map_err(|error| CommandError::cluster("list reassignments", error))?;
    let rows = AddedRow::of_all(&view.moving);
    match args.output.output {
        OutputFormat::Json => rows.iter().try_for_each(|row| json_line(out, row))?,
        OutputFormat::Text => print_added(&rows, &view.unreachable, out)?,
    }
    Ok(if view.unreachable.is_empty() { Verdict::Good } else { Verdict::Wrong })
}

fn partition_of(topic: &DescribedTopic, partition: PartitionIndex) -> PartitionRef {
    PartitionRef { topic: TopicRef::Id(topic.record.id), partition }
}
