//! `highwater demo`: nodes on this machine, a real input replicated to all of them, the leader killed in the middle of it,
//! and the proof that nothing is lost.
//!
//! What holds: exit code 0 means that every line of the input is acknowledged and was read back as it was sent, that all
//! replicas are identical, byte for byte, and that every program ended well. Without `--keep` no program outlives it,
//! however it ends. When something failed, the end of what every program printed is shown and the directory stays; a
//! temporary one goes when a signal ended the demo. One node cannot be replaced by another: its demo kills nobody.

mod child;
mod input;
mod nodes;
mod place;
mod ports;
mod programs;
mod replicate;
mod report;
mod takeover;
mod verify;
mod watch;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use highwater_client::{Client, ClientConfig, DescribedTopic};
use highwater_types::TopicName;

use self::child::Life;
use self::input::{Input, Survey};
use self::nodes::Nodes;
use self::place::Place;
use self::programs::Programs;
use crate::figures::count;
use crate::interruption::interruption;
use crate::outcome::{CommandError, Verdict};
use crate::topics::PropertyArgs;

/// The topic.
const TOPIC: &str = "demo";
/// On how many nodes each partition has a replica, where there are so many.
const REPLICAS: u8 = 3;

/// What to show.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// A file to replicate, one record a line; without it, a sample.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Leaves the nodes running at the end, and prints how to look around and how to stop them.
    #[arg(long)]
    keep: bool,
    /// Where leader-svc and follower-agent are; without it, beside this program, then in PATH.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// A new or empty directory for everything the nodes write, which stays; without it, a temporary one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How many nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// How many partitions the topic gets.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=1000))]
    partitions: i32,
    #[command(flatten)]
    properties: PropertyArgs,
}

/// Carries the command out. Must be called on a thread that lives as long as the process.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    let input = Input::new(args.input.as_deref());
    let survey = input.survey()?;
    let programs = Programs::find(args.bin_dir.as_deref())?;
    let interrupted = interruption()?;
    let place = Place::make(args.dir.as_deref())?;
    // Declared, and so dropped, in this order: no program outlives its directory.
    let nodes = Nodes::plan(programs, place.path(), args.nodes)?;
    let shown = tokio::select! {
        shown = show(args, &input, &survey, &nodes, out) => shown,
        by = interrupted => Err(CommandError::Interrupted(by)),
    };
    match shown {
        Ok((verdict, around)) => {
            if verdict == Verdict::Wrong {
                tell_what_they_printed(&nodes, &place);
            }
            if args.keep {
                let ids = nodes.let_go();
                say(out, report::how_to_stop(&ids, place.path()))?;
            } else {
                say(out, "with --keep the nodes stay, and these show them:")?;
            }
            say(out, around)?;
            if args.keep || verdict == Verdict::Wrong {
                place.leave();
            }
            Ok(verdict)
        }
        // Nothing is wrong with the nodes, so what they wrote goes with them.
        Err(error) if error.is_closed_output() || matches!(error, CommandError::Interrupted(_)) => Err(error),
        Err(error) => {
            tell_what_they_printed(&nodes, &place);
            place.leave();
            Err(error)
        }
    }
}

fn say(out: &mut dyn Write, text: impl Display) -> Result<(), CommandError> {
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn tell_what_they_printed(nodes: &Nodes, place: &Place) {
    // That nobody listens there is no further failure.
    let _ = writeln!(
        io::stderr(),
        "{}what they wrote stays in {}, to see why",
        nodes.tails(),
        place.path().display()
    );
}

/// Runs the nodes and verifies what they did; returns also how to look around.
async fn show(
    args: &DemoArgs,
    input: &Input,
    survey: &Survey,
    nodes: &Nodes,
    out: &mut dyn Write,
) -> Result<(Verdict, String), CommandError> {
    nodes.start(Life::Tied).await?;
    say(out, report::nodes(nodes))?;
    let config = ClientConfig::new(nodes.bootstrap());
    let client = Client::new(config).map_err(|e| CommandError::cluster("connect", e))?;
    let worked = tokio::select! {
        worked = work(args, &client, (input, survey), nodes, out) => worked,
        problem = nodes.any_end() => Err(CommandError::Failed(problem)),
    };
    let (topic, mut faults) = worked?;

    faults.extend(nodes.stop().await);
    let replicas = usize::from(args.nodes.min(REPLICAS));
    let (directories, name, partitions) =
        (nodes.data_dirs(), topic.record.name.clone(), topic.record.partitions);
    let comparing =
        tokio::task::spawn_blocking(move || verify::compare(directories, &name, partitions, replicas));
    let compared = comparing.await.map_err(|e| CommandError::Failed(format!("cannot compare: {e}")))??;
    say(out, report::compared(&compared, replicas))?;
    faults.extend(compared.faults);

    for fault in &faults {
        say(out, format_args!("WRONG: {fault}"))?;
    }
    let topic = if args.keep {
        nodes.forget();
        nodes.start(Life::OfItsOwn).await?;
        replicate::led(&client, &topic.record.name).await?
    } else {
        topic
    };
    let around = report::look_around(nodes, &topic);
    if !faults.is_empty() {
        return Ok((Verdict::Wrong, around));
    }
    say(out, report::verified(replicas))?;
    Ok((Verdict::Good, around))
}

/// What needs the nodes: replicates and reads back. Returns what was wrong.
async fn work(
    args: &DemoArgs,
    client: &Client,
    (input, survey): (&Input, &Survey),
    nodes: &Nodes,
    out: &mut dyn Write,
) -> Result<(DescribedTopic, Vec<String>), CommandError> {
    let name: TopicName = TOPIC.parse().map_err(|e| CommandError::Failed(format!("{e}")))?;
    let replicas = usize::from(args.nodes.min(REPLICAS));
    let mut properties = args.properties.properties()?;
    if !args.properties.names("min.insync.replicas") {
        // All but one: what is acknowledged outlives any one node, and one node may be away.
        properties.min_insync_replicas = u32::from(args.nodes.min(REPLICAS)).saturating_sub(1).max(1);
    }
    let topic = replicate::topic(name, args.partitions, replicas, properties, survey);
    let topic = replicate::create_topic(client, &topic).await?;
    say(out, report::topic(&topic, replicas))?;
    say(out, format_args!("replicating {input}: {survey}"))?;
    let replicated = replicate::replicate(client, &topic, (input, survey), nodes, out).await?;
    say(out, report::replicated(&replicated, &topic))?;

    let mut faults: Vec<String> = Vec::new();
    let failures = &replicated.account.failures;
    faults.extend(failures.first.iter().map(|(line, why)| format!("line {line} is not acknowledged: {why}")));
    if replicated.records != survey.records {
        let (sent, all) = (count(replicated.records), count(survey.records));
        faults.push(format!("{sent} of {all} records are acknowledged"));
    }
    let read = verify::read_back(client, &topic.record.name, &replicated.account.ledgers).await?;
    if read.faults.is_empty() {
        say(out, report::read_back(replicated.records, &read))?;
    }
    faults.extend(read.faults);
    let topic = replicate::led(client, &topic.record.name).await?;
    Ok((topic, faults))
}
