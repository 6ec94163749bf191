//! `highwater log dump`: every batch and record, as text or as one JSON object a line.
//!
//! What holds: keys and values are printed without loss in JSON: as text when they are UTF-8, else in base64. Damage does not end a
//! dump: it is printed in its place, and the command's verdict is then `Wrong`.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use highwater_log::{BadBytes, Judgement, OsStorage, ReadOnlyLog, Scanned};
use highwater_records::{BatchView, ControlRecord, Record, TimestampType, records};
use highwater_types::Offset;
use serde::Serialize;

use super::about::About;
use super::partition::{PartitionDir, select};
use super::{LogCommandError, OutputArgs, OutputFormat, Verdict, json_line};
use crate::figures::counted;

/// Prints every batch and record.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// Partition directories, or data directories that hold some.
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Leave the records out.
    #[arg(long)]
    batches_only: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// A line of the JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Partition(About),
    Segment {
        base_offset: i64,
        file: String,
        bytes: u64,
    },
    Batch(DumpedBatch),
    Damage {
        position: u64,
        bytes: u64,
        reason: String,
        resumes_at: Option<i64>,
    },
    /// The tail of a log that a program has open.
    InUse {
        position: u64,
        bytes: u64,
    },
}

/// A batch's header and, unless they are left out, its records. -1 stands for "none" where Kafka's format has it so.
#[derive(Serialize)]
struct DumpedBatch {
    position: u64,
    size: usize,
    base_offset: i64,
    last_offset: i64,
    record_count: i32,
    leader_epoch: i32,
    compression: String,
    timestamp_type: &'static str,
    base_timestamp: i64,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    last_sequence: i32,
    transactional: bool,
    control: bool,
    delete_horizon: Option<i64>,
    crc: u32,
    crc_ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Vec<DumpedRecord>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    records_error: Option<String>,
}

#[derive(Serialize)]
struct DumpedRecord {
    offset: i64,
    timestamp: i64,
    sequence: i32,
    key: Option<Data>,
    value: Option<Data>,
    headers: Vec<DumpedHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<DumpedControl>,
}

#[derive(Serialize)]
struct DumpedHeader {
    key: String,
    value: Option<Data>,
}

#[derive(Serialize)]
struct DumpedControl {
    control_type: &'static str,
    coordinator_epoch: Option<i32>,
}

/// Bytes: as text when they are UTF-8.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Text(String),
    Base64(String),
}

/// Carries the command out.
pub(super) fn run(args: &DumpArgs, out: &mut dyn Write) -> Result<Verdict, LogCommandError> {
    let mut verdict = Verdict::Good;
    for directory in &args.directories {
        for partition in select(directory)?.partitions {
            verdict = verdict.and(dump_partition(args, &partition, out)?);
        }
    }
    Ok(verdict)
}

fn dump_partition(
    args: &DumpArgs,
    partition: &PartitionDir,
    out: &mut dyn Write,
) -> Result<Verdict, LogCommandError> {
    let mut printer = Printer { format: args.output.output, out };
    let log = partition.open()?;
    printer.print(&Line::Partition(About::read(&partition.name, &log)?))?;
    let mut verdict = Verdict::Good;
    for segment in &log.files().segments {
        verdict = verdict.and(dump_segment(args, &log, segment.base, &mut printer)?);
    }
    Ok(verdict)
}

fn dump_segment(
    args: &DumpArgs,
    log: &ReadOnlyLog<OsStorage>,
    base: Offset,
    printer: &mut Printer<'_>,
) -> Result<Verdict, LogCommandError> {
    let mut scan = log.scan(base)?;
    let path = log.segment_path(base);
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    printer.print(&Line::Segment { base_offset: base.get(), file, bytes: scan.len() })?;
    let mut verdict = Verdict::Good;
    while let Some(scanned) = scan.next_piece()? {
        match scanned {
            Scanned::Batch { position, batch } => {
                let dumped = DumpedBatch::new(&batch, position, true, args.batches_only);
                if dumped.records_error.is_some() {
                    verdict = Verdict::Wrong;
                }
                printer.print(&Line::Batch(dumped))?;
            }
            Scanned::Bad(bad) if log.judge(base, &bad)? == Judgement::InUse => {
                printer.print(&Line::InUse { position: bad.position, bytes: bad.bytes })?;
            }
            Scanned::Bad(BadBytes { position, bytes, error, batch, resumes_at }) => {
                verdict = Verdict::Wrong;
                if let Some(batch) = batch {
                    let dumped = DumpedBatch::new(&batch, position, false, args.batches_only);
                    printer.print(&Line::Batch(dumped))?;
                }
                let resumes_at = resumes_at.map(Offset::get);
                printer.print(&Line::Damage { position, bytes, reason: error.to_string(), resumes_at })?;
            }
        }
    }
    Ok(verdict)
}

impl DumpedBatch {
    fn new(batch: &BatchView<'_>, position: u64, crc_ok: bool, without_records: bool) -> Self {
        let (records, records_error) = if without_records {
            (None, None)
        } else {
            let (records, error) = dump_records(batch);
            (Some(records), error)
        };
        Self {
            position,
            size: batch.size(),
            base_offset: batch.base_offset().get(),
            last_offset: batch.last_offset().get(),
            record_count: batch.record_count(),
            leader_epoch: batch.leader_epoch().map_or(-1, |epoch| epoch.get()),
            compression: batch.compression().map_or_else(|e| e.to_string(), |codec| codec.to_string()),
            timestamp_type: match batch.timestamp_type() {
                TimestampType::CreateTime => "CreateTime",
                TimestampType::LogAppendTime => "LogAppendTime",
            },
            base_timestamp: batch.base_timestamp().as_millis(),
            max_timestamp: batch.max_timestamp().as_millis(),
            producer_id: batch.producer_id(),
            producer_epoch: batch.producer_epoch(),
            base_sequence: batch.base_sequence(),
            last_sequence: batch.last_sequence(),
            transactional: batch.is_transactional(),
            control: batch.is_control(),
            delete_horizon: batch.delete_horizon().map(|at| at.as_millis()),
            crc: batch.crc(),
            crc_ok,
            records,
            records_error,
        }
    }
}

/// The records up to the first that cannot be decoded, and why it cannot.
fn dump_records(batch: &BatchView<'_>) -> (Vec<DumpedRecord>, Option<String>) {
    let mut dumped = Vec::new();
    let decoded = match records(batch) {
        Ok(decoded) => decoded,
        Err(e) => return (dumped, Some(e.to_string())),
    };
    for record in decoded {
        match record {
            Ok(record) => dumped.push(DumpedRecord::new(&record, batch.is_control())),
            Err(e) => return (dumped, Some(e.to_string())),
        }
    }
    (dumped, None)
}

impl DumpedRecord {
    fn new(record: &Record, is_control: bool) -> Self {
        let control = if is_control { ControlRecord::decode(record) } else { None };
        Self {
            offset: record.offset.get(),
            timestamp: record.timestamp.as_millis(),
            sequence: record.sequence,
            key: record.key.as_deref().map(Data::new),
            value: record.value.as_deref().map(Data::new),
            headers: record
                .headers
                .iter()
                .map(|h| DumpedHeader { key: h.key.clone(), value: h.value.as_deref().map(Data::new) })
                .collect(),
            control: control.map(|control| DumpedControl {
                control_type: control.control_type.name(),
                coordinator_epoch: control.coordinator_epoch,
            }),
        }
    }
}

impl Data {
    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }
}

struct Printer<'a> {
    format: OutputFormat,
    out: &'a mut dyn Write,
}

impl Printer<'_> {
    fn print(&mut self, line: &Line) -> Result<(), LogCommandError> {
        match self.format {
            OutputFormat::Json => json_line(self.out, line),
            OutputFormat::Text => Ok(writeln!(self.out, "{line}")?),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(about) => about.fmt(f),
            Self::Segment { base_offset, file, bytes } => {
                write!(f, "segment {base_offset}: {file}, {}", counted(*bytes, "byte"))
            }
            Self::Batch(batch) => batch.fmt(f),
            Self::InUse { position, bytes } => {
                write!(f, "  in use: {} at {position}, still being written", counted(*bytes, "byte"))
            }
            Self::Damage { position, bytes, reason, resumes_at } => {
                write!(f, "  DAMAGE: {} at {position}: {reason}; ", counted(*bytes, "byte"))?;
                match resumes_at {
                    Some(offset) => write!(f, "the log goes on at offset {offset}"),
                    None => f.write_str("no good batch follows in this segment"),
                }
            }
        }
    }
}

impl fmt::Display for DumpedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  batch {}..={}", self.base_offset, self.last_offset)?;
        write!(f, " records {} epoch {}", self.record_count, self.leader_epoch)?;
        write!(f, " {} {} {}", self.compression, self.timestamp_type, self.max_timestamp)?;
        if self.producer_id >= 0 {
            let (id, epoch) = (self.producer_id, self.producer_epoch);
            write!(f, " producer {id}/{epoch} sequence {}..={}", self.base_sequence, self.last_sequence)?;
        }
        if self.transactional {
            f.write_str(" transactional")?;
        }
        if self.control {
            f.write_str(" control")?;
        }
        if let Some(horizon) = self.delete_horizon {
            write!(f, " delete horizon {horizon}")?;
        }
        write!(f, " at {} size {} crc {:08x}", self.position, self.size, self.crc)?;
        f.write_str(if self.crc_ok { " ok" } else { " WRONG" })?;
        for record in self.records.iter().flatten() {
            write!(f, "\n    {record}")?;
        }
        match &self.records_error {
            Some(error) => write!(f, "\n    DAMAGE: {error}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for DumpedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} time {}", self.offset, self.timestamp)?;
        if let Some(control) = &self.control {
            write!(f, " {}", control.control_type)?;
            return match control.coordinator_epoch {
                Some(epoch) => write!(f, " coordinator epoch {epoch}"),
                None => Ok(()),
            };
        }
        write!(f, " key {} value {}", Shown(self.key.as_ref()), Shown(self.value.as_ref()))?;
        for header in &self.headers {
            write!(f, " header {:?}={}", header.key, Shown(header.value.as_ref()))?;
        }
        Ok(())
    }
}

/// Data for people: quoted text, `base64:…`, or `null`.
struct Shown<'a>(Option<&'a Data>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("null"),
            Some(Data::Text(text)) => write!(f, "{text:?}"),
            Some(Data::Base64(encoded)) => write!(f, "base64:{encoded}"),
        }
    }
}
