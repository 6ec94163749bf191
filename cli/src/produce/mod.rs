//! `highwater produce`: one record for each line of a file or of standard input.
//!
//! What holds: exit code 0 means that every line was acknowledged as `--acks` asks. A line that was not is named with its
//! number; a line of its own fault (too long) is passed over, anything else stops the reading, and the line with which it
//! stopped is told. A line whose outcome is unknown is sent again: with `--acks all`, and not `--idempotence=false`, it is in
//! the topic once all the same, otherwise it can be there twice.

mod progress;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use highwater_client::{Acks, Client, Producer, ProducerConfig, ProducerRecord, new_trace};
use highwater_records::Compression;
use highwater_types::{PartitionIndex, TopicName, TopicRecord, TraceContext};

use crate::connection::{ASK_TIMEOUT, ConnectionArgs, STREAM_TIMEOUT};
use crate::figures::{count, counted, per_second, rate, size, time};
use crate::interruption::{Interruption, interruption};
use crate::lines::{Content, Line, Source};
use crate::load::{Account, Failures, Loader};
use crate::outcome::{CommandError, Verdict};

/// Sends lines.
#[derive(Args, Debug)]
pub(crate) struct ProduceArgs {
    /// The topic.
    topic: TopicName,
    /// The file whose lines are sent; without it, or as -, standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// What separates the key from the value in a line. A line without it has no key.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key_separator: Option<String>,
    /// When a record counts as delivered: 0 when it is sent, 1 when the leader holds it, all when every in-sync replica does.
    #[arg(long, value_enum, default_value_t = AcksArg::All)]
    acks: AcksArg,
    /// Repeat no record: a batch that is sent again because its acknowledgement was lost is numbered and appended once, also
    /// when the leader has changed or restarted meanwhile. On with --acks all, which it needs; otherwise such records can be
    /// there twice.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    idempotence: Option<bool>,
    /// How batches are compressed.
    #[arg(long, value_enum, default_value_t = CompressionArg::None)]
    compression: CompressionArg,
    /// The partition to send to; without it by the key, and without a key to one after the other.
    #[arg(long, value_name = "N", value_parser = partition_index)]
    partition: Option<PartitionIndex>,
    /// Begin a trace that the records belong to, and print its id.
    #[arg(long, conflicts_with = "traceparent")]
    trace: bool,
    /// The span that the records belong to: a W3C traceparent.
    #[arg(long, value_name = "TRACEPARENT")]
    traceparent: Option<TraceContext>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The number of a partition on the command line.
pub(crate) fn partition_index(text: &str) -> Result<PartitionIndex, String> {
    text.parse()
        .ok()
        .and_then(PartitionIndex::new)
        .ok_or_else(|| "a whole number from 0 is needed".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AcksArg {
    #[value(name = "0")]
    None,
    #[value(name = "1")]
    Leader,
    All,
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Self {
        match acks {
            AcksArg::None => Self::None,
            AcksArg::Leader => Self::Leader,
            AcksArg::All => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompressionArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl From<CompressionArg> for Compression {
    fn from(compression: CompressionArg) -> Self {
        match compression {
            CompressionArg::None => Self::None,
            CompressionArg::Gzip => Self::Gzip,
            CompressionArg::Snappy => Self::Snappy,
            CompressionArg::Lz4 => Self::Lz4,
            CompressionArg::Zstd => Self::Zstd,
        }
    }
}

/// Carries the command out.
///
/// # Errors
/// [`CommandError`] before anything was sent, or when the input cannot be read.
pub(crate) async fn run(args: &ProduceArgs, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    if args.idempotence == Some(true) && args.acks != AcksArg::All {
        return Err(CommandError::Usage("--idempotence needs --acks all".to_owned()));
    }
    let source = Source::open(args.file.as_deref())?;
    let topic = find_topic(args).await?;
    let config = producer_config(args, &topic);
    let (longest, trace) = (longest_line(&config, &topic), config.trace);
    let client = args.connection.client(STREAM_TIMEOUT)?;
    let loader = start(client, config, &topic)?;
    let bar = progress::Bar::start(&source, loader.progress());
    let interrupted = interruption()?;
    let begun = Instant::now();
    let progress = loader.progress();
    let (account, end) = send_all(args, source, longest, loader, interrupted).await;
    let took = begun.elapsed();
    bar.finish();
    writeln!(out, "{}", summary(args.acks, progress.records(), progress.bytes(), took, &account))?;
    if let Some(trace) = trace {
        writeln!(out, "  trace {:032x}", trace.trace_id())?;
    }
    out.flush()?;
    let complete = account.failures.count == 0;
    // That nobody listens there is no further failure.
    let _ = tell(&account.failures, end.as_ref(), &mut io::stderr().lock());
    match end {
        Some(End::Unreadable(error)) => Err(error),
        Some(End::Interrupted(by)) => Err(CommandError::Interrupted(by)),
        Some(End::Stopped { .. }) => Ok(Verdict::Wrong),
        None => Ok(if complete { Verdict::Good } else { Verdict::Wrong }),
    }
}

/// The topic's record; a wrong name or partition must not wait for the input.
async fn find_topic(args: &ProduceArgs) -> Result<TopicRecord, CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let described = client.describe_topic(&args.topic).await;
    let topic = described.map_err(|e| CommandError::cluster(format!("find topic {}", args.topic), e))?;
    let (name, partitions) = (&args.topic, topic.record.partitions);
    if let Some(partition) = args.partition.filter(|partition| partition.get() >= partitions) {
        let have = counted(u64::try_from(partitions).unwrap_or(0), "partition");
        return Err(CommandError::Usage(format!(
            "topic {name} has {have}; there is no partition {partition}"
        )));
    }
    Ok(topic.record.clone())
}

fn producer_config(args: &ProduceArgs, topic: &TopicRecord) -> ProducerConfig {
    let defaults = ProducerConfig::default();
    let largest = usize::try_from(topic.properties.max_message_bytes).unwrap_or(usize::MAX);
    ProducerConfig {
        acks: args.acks.into(),
        idempotence: args.idempotence.unwrap_or(defaults.idempotence),
        compression: args.compression.into(),
        // Twice the largest record, so that one can be filled while another is sent.
        buffer_bytes: defaults.buffer_bytes.max(largest.saturating_mul(2).min(BUFFER_MAX)),
        delivery_timeout: args.connection.timeout.unwrap_or(defaults.delivery_timeout),
        trace: args.traceparent.or_else(|| args.trace.then(new_trace)),
        ..defaults
    }
}

/// The most memory for records that are not delivered, in bytes: two of the largest that a topic can allow.
const BUFFER_MAX: usize = (2 << 30) + (1 << 20);

/// The longest line that is worth sending: a compressed batch may be smaller than its records, so then the leader says.
fn longest_line(config: &ProducerConfig, topic: &TopicRecord) -> usize {
    /// What a record costs in the producer's buffer beside its key and value, at most.
    const OVERHEAD: usize = 1024;
    let buffered = config.buffer_bytes.saturating_sub(OVERHEAD);
    match config.compression {
        Compression::None => {
            buffered.min(usize::try_from(topic.properties.max_message_bytes).unwrap_or(buffered))
        }
        Compression::Gzip | Compression::Snappy | Compression::Lz4 | Compression::Zstd => buffered,
    }
}

/// Starts to send to `topic`.
pub(crate) fn start(
    client: Client,
    config: ProducerConfig,
    topic: &TopicRecord,
) -> Result<Loader, CommandError> {
    let failed = |e| CommandError::cluster(format!("produce to {}", topic.name), e);
    let producer = Producer::new(client, config).map_err(failed)?;
    Ok(Loader::new(producer, topic.name.clone(), topic.partitions))
}

/// Why the input was not sent to its end.
#[derive(Debug)]
enum End {
    /// It cannot be read any further.
    Unreadable(CommandError),
    /// Sending was given up; this line and those after it were not sent.
    Stopped { line: u64 },
    /// A signal asked for the end.
    Interrupted(Interruption),
}

async fn send_all(
    args: &ProduceArgs,
    source: Source,
    longest: usize,
    mut loader: Loader,
    interrupted: impl Future<Output = Interruption>,
) -> (Account, Option<End>) {
    let sending = async move {
        let end = send_lines(args, source, longest, &mut loader).await;
        (loader.finish().await, end)
    };
    tokio::select! {
        done = sending => done,
        by = interrupted => (Account::empty(), Some(End::Interrupted(by))),
    }
}

async fn send_lines(args: &ProduceArgs, source: Source, longest: usize, loader: &mut Loader) -> Option<End> {
    let what =
        args.file.as_ref().map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    let mut lines = source.read(longest);
    while let Some(read) = lines.recv().await {
        let lines = match read {
            Ok(lines) => lines,
            Err(source) => return Some(End::Unreadable(CommandError::Read { what, source })),
        };
        for line in lines {
            if loader.must_stop() {
                return Some(End::Stopped { line: line.number });
            }
            send(args, longest, line, loader).await;
        }
    }
    None
}

async fn send(args: &ProduceArgs, longest: usize, line: Line, loader: &mut Loader) {
    match line.content {
        Content::TooLong { bytes } => loader.refuse(line.number, too_long(bytes, longest)),
        Content::Whole(bytes) => {
            let (key, value) = split_key(bytes, args.key_separator.as_deref());
            let record = ProducerRecord {
                partition: args.partition,
                key,
                value: Some(value),
                ..ProducerRecord::default()
            };
            loader.send(line.number, record, 0).await;
        }
    }
}

/// Why a line is not sent.
fn too_long(bytes: u64, longest: usize) -> String {
    let longest = u64::try_from(longest).unwrap_or(u64::MAX);
    format!(
        "{} bytes, and the topic's max.message.bytes lets at most {} through",
        count(bytes),
        count(longest)
    )
}

/// The key and the value of a line.
fn split_key(line: Bytes, separator: Option<&str>) -> (Option<Bytes>, Bytes) {
    let separator = separator.unwrap_or_default().as_bytes();
    if separator.is_empty() {
        return (None, line);
    }
    match line.windows(separator.len()).position(|window| window == separator) {
        Some(at) => (Some(line.slice(..at)), line.slice(at.saturating_add(separator.len())..)),
        None => (None, line),
    }
}

fn summary(acks: AcksArg, records: u64, bytes: u64, took: Duration, account: &Account) -> String {
    let delivered = match acks {
        AcksArg::None => "sent, without acknowledgement,",
        AcksArg::Leader | AcksArg::All => "acknowledged",
    };
    let mut text = format!(
        "{} ({}) {delivered} in {}: {}, {}/s",
        counted(records, "record"),
        size(bytes),
        time(took),
        rate(bytes, took),
        counted(per_second(records, took), "record"),
    );
    for (partition, ledger) in &account.ledgers {
        if let Some(last) = ledger.last() {
            let records = counted(ledger.records(), "record");
            text.push_str(&format!("\n  partition {partition}: {records}, up to offset {last}"));
        }
    }
    text
}

/// Names what was not acknowledged.
fn tell(failures: &Failures, end: Option<&End>, err: &mut dyn Write) -> io::Result<()> {
    for (line, reason) in &failures.first {
        writeln!(err, "highwater: line {line} is not acknowledged: {reason}")?;
    }
    let more = failures.count.saturating_sub(failures.first.len() as u64);
    if more > 0 {
        writeln!(err, "highwater: {} more are not acknowledged", counted(more, "line"))?;
    }
    match end {
        Some(End::Stopped { line }) => {
            writeln!(err, "highwater: stopped: line {line} and those after it were not sent")
        }
        Some(End::Interrupted(_)) => {
            writeln!(err, "highwater: what is not acknowledged may be in the topic all the same")
        }
        Some(End::Unreadable(_)) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &'static str, separator: Option<&str>) -> (Option<Vec<u8>>, Vec<u8>) {
        let (key, value) = split_key(Bytes::from_static(line.as_bytes()), separator);
        (key.map(|key| key.to_vec()), value.to_vec())
    }

    #[test]
    fn a_line_is_split_at_the_first_separator() {
        assert_eq!(split("a:b:c", Some(":")), (Some(b"a".to_vec()), b"b:c".to_vec()));
        assert_eq!(split("a=>b", Some("=>")), (Some(b"a".to_vec()), b"b".to_vec()));
        assert_eq!(split(":b", Some(":")), (Some(vec![]), b"b".to_vec()), "an empty key is a key");
        assert_eq!(split("a:", Some(":")), (Some(b"a".to_vec()), vec![]));
        assert_eq!(split("ab", Some(":")), (None, b"ab".to_vec()));
        assert_eq!(split("a:b", None), (None, b"a:b".to_vec()));
        assert_eq!(split("", Some(":")), (None, vec![]));
    }

    #[test]
    fn what_was_not_acknowledged_is_named() {
        let mut failures = Failures::default();
        (1..=12).for_each(|line| failures.add(line, "refused".to_owned()));
        let mut told = Vec::new();
        tell(&failures, Some(&End::Stopped { line: 13 }), &mut told).unwrap();
        let told = String::from_utf8(told).unwrap();
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(lines[0], "highwater: line 1 is not acknowledged: refused");
        assert_eq!(lines[10], "highwater: 2 lines more are not acknowledged");
        assert_eq!(lines[11], "highwater: stopped: line 13 and those after it were not sent");
    }
}
