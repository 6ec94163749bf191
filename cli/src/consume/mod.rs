//! `highwater consume`: prints the records of a topic.
//!
//! What holds: without `--follow` it ends where each partition ended when its reading began. Records of one partition are
//! printed in their order; between partitions there is none. Whoever closes the output ends it.

mod place;
mod print;

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use highwater_client::{Client, ClientError, Consumer, ConsumerConfig, Polled, StartAt};
use highwater_types::{Offset, PartitionIndex, TopicName, TopicPartition};

use self::place::Place;
use crate::connection::{ASK_TIMEOUT, ConnectionArgs, STREAM_TIMEOUT};
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat};
use crate::produce::partition_index;

/// Prints records.
#[derive(Args, Debug)]
pub(crate) struct ConsumeArgs {
    /// The topic.
    topic: TopicName,
    /// Where to begin: earliest, latest, an offset, a time such as 2026-03-01T12:30:00Z, or how long ago, such as 15min.
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    from: Place,
    /// Ends after so many records.
    #[arg(long, value_name = "N")]
    max_records: Option<u64>,
    /// Goes on and waits for new records.
    #[arg(long)]
    follow: bool,
    /// The partition to read; without it all of them.
    #[arg(long, value_name = "N", value_parser = partition_index)]
    partition: Option<PartitionIndex>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Carries the command out.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn run(args: &ConsumeArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let failed = |e| CommandError::cluster(format!("read topic {}", args.topic), e);
    let asking = args.connection.client(ASK_TIMEOUT)?;
    let partitions = asking.describe_topic(&args.topic).await.map_err(failed)?.record.partitions;
    if let (StartAt::Offset(_), None, true) = (args.from.0, args.partition, partitions > 1) {
        return Err(CommandError::Usage(format!(
            "topic {} has {partitions} partitions, each with offsets of its own: say which by --partition",
            args.topic
        )));
    }
    let client = args.connection.client(STREAM_TIMEOUT)?;
    let chosen: Vec<PartitionIndex> = args.partition.into_iter().collect();
    let reading = read(&client, args, &chosen, out);
    tokio::select! {
        done = reading => done,
        // Whoever follows a topic ends it so; that is no failure.
        _ = tokio::signal::ctrl_c(), if args.follow => Ok(()),
    }
}

async fn read(
    client: &Client,
    args: &ConsumeArgs,
    chosen: &[PartitionIndex],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let failed = |e| CommandError::cluster(format!("read topic {}", args.topic), e);
    let consumer = Consumer::start(client, &args.topic, chosen, args.from.0, ConsumerConfig::default()).await;
    let mut consumer = consumer.map_err(failed)?;
    let mut printer = Printer::new(args.output.output, args.max_records, args.follow);
    for partition in consumer.partitions() {
        // A leader that has just begun may tell a reader of less than is committed, but says so when asked for the end.
        let end = if args.follow { None } else { Some(client.end_offset(partition).await.map_err(failed)?) };
        printer.ends.insert(partition.clone(), end);
    }
    while !printer.is_done() {
        match consumer.poll().await {
            Ok(polled) => printer.print(&polled, out)?,
            Err(ClientError::Closed) => break,
            Err(error) => return Err(failed(error)),
        }
        // What there is shows at once, whether more comes or not.
        out.flush()?;
    }
    Ok(())
}

/// Prints what is polled, as far as it was asked for.
#[derive(Debug)]
struct Printer {
    format: OutputFormat,
    /// How many records may still be printed.
    left: Option<u64>,
    follows: bool,
    /// The partitions that are not read to their end, with that end once it is known.
    ends: BTreeMap<TopicPartition, Option<Offset>>,
}

impl Printer {
    fn new(format: OutputFormat, max_records: Option<u64>, follows: bool) -> Self {
        Self { format, left: max_records, follows, ends: BTreeMap::new() }
    }

    fn is_done(&self) -> bool {
        self.left == Some(0) || self.ends.is_empty()
    }

    fn print(&mut self, polled: &Polled, out: &mut dyn Write) -> Result<(), CommandError> {
        let Some(end) = self.ends.get_mut(&polled.partition) else { return Ok(()) };
        let end = *end.get_or_insert(polled.high_watermark);
        for record in &polled.records {
            if self.left == Some(0) || (!self.follows && record.offset >= end) {
                break;
            }
            print::print(self.format, &polled.partition, record, out)?;
            self.left = self.left.map(|left| left.saturating_sub(1));
        }
        if !self.follows && polled.next_offset >= end {
            self.ends.remove(&polled.partition);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use highwater_records::Record;
    use highwater_types::WallTime;

    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn partition(index: i32) -> TopicPartition {
        TopicPartition::new("orders".parse().unwrap(), PartitionIndex::new(index).unwrap())
    }

    fn polled(index: i32, offsets: std::ops::Range<i64>, next: i64, high_watermark: i64) -> Polled {
        let record = |raw| Record {
            offset: offset(raw),
            timestamp: WallTime::from_millis(0),
            sequence: -1,
            key: None,
            value: Some(Bytes::from(format!("{index}/{raw}"))),
            headers: Vec::new(),
        };
        Polled {
            partition: partition(index),
            records: offsets.map(record).collect(),
            next_offset: offset(next),
            high_watermark: offset(high_watermark),
        }
    }

    fn printer(max_records: Option<u64>, follows: bool) -> Printer {
        let mut printer = Printer::new(OutputFormat::Text, max_records, follows);
        printer.ends.extend([(partition(0), None), (partition(1), None)]);
        printer
    }

    fn printed(printer: &mut Printer, polled: &Polled) -> String {
        let mut out = Vec::new();
        printer.print(polled, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_ends_where_the_partitions_ended_when_the_reading_began() {
        let mut printer = printer(None, false);
        assert_eq!(printed(&mut printer, &polled(0, 0..2, 2, 3)), "0/0\n0/1\n");
        assert_eq!(printed(&mut printer, &polled(1, 0..0, 0, 0)), "", "an empty partition ends at once");
        assert!(!printer.is_done());
        assert_eq!(printed(&mut printer, &polled(0, 2..9, 9, 9)), "0/2\n", "what came later is left out");
        assert!(printer.is_done());
    }

    #[test]
    fn a_partition_that_ends_with_control_batches_is_read_to_its_end() {
        let mut printer = printer(None, false);
        printed(&mut printer, &polled(0, 0..2, 3, 3));
        printed(&mut printer, &polled(1, 0..0, 1, 1));
        assert!(printer.is_done());
    }

    #[test]
    fn it_ends_after_so_many_records_of_all_partitions() {
        let mut printer = printer(Some(3), true);
        printed(&mut printer, &polled(0, 0..2, 2, 2));
        assert!(!printer.is_done());
        assert_eq!(printed(&mut printer, &polled(1, 0..2, 2, 2)), "1/0\n");
        assert!(printer.is_done());
    }

    #[test]
    fn who_follows_is_never_done() {
        let mut printer = printer(None, true);
        printed(&mut printer, &polled(0, 0..2, 2, 2));
        printed(&mut printer, &polled(1, 0..2, 2, 2));
        assert!(!printer.is_done());
    }
}
