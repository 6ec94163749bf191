//! Reads what Kafka's DumpLogSegments prints (`--deep-iteration --print-data-log`), as it stands beside each fixture.
//!
//! What holds: a line that is not understood is an error, so nothing of a dump goes unread by accident; only Kafka's stderr
//! and its producer snapshots are passed over, since nothing is compared with them. The text of other files is kept as it is.

use std::collections::BTreeMap;
use std::str::FromStr;

/// What Kafka printed about a tree of partition directories. The keys are the files' paths in the fixture.
#[derive(Debug, Default)]
pub struct KafkaDump {
    /// The segments.
    pub logs: BTreeMap<String, LogDump>,
    /// The offset indexes; those on which Kafka ended with an exception are not among them.
    pub offset_indexes: BTreeMap<String, Vec<OffsetIndexEntry>>,
    /// The time indexes.
    pub time_indexes: BTreeMap<String, Vec<TimeIndexEntry>>,
    /// The lines of text files: checkpoints, topic ids.
    pub texts: BTreeMap<String, Vec<String>>,
}

/// A segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogDump {
    /// The batches.
    pub batches: Vec<BatchDump>,
    /// How many bytes at the end Kafka could not read.
    pub invalid_tail_bytes: Option<u64>,
}

/// A batch's header.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are Kafka's")]
pub struct BatchDump {
    pub base_offset: i64,
    pub last_offset: i64,
    pub count: i32,
    pub base_sequence: i32,
    pub last_sequence: i32,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub leader_epoch: i32,
    pub is_transactional: bool,
    pub is_control: bool,
    pub delete_horizon: Option<i64>,
    pub position: u64,
    pub timestamp_type: String,
    pub max_timestamp: i64,
    pub size: u64,
    pub compression: String,
    pub crc: u32,
    pub is_valid: bool,
    pub records: Vec<RecordDump>,
}

/// A record. Kafka prints keys and values as text, replacing what is not UTF-8.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are Kafka's")]
pub struct RecordDump {
    pub offset: i64,
    pub timestamp_type: String,
    pub timestamp: i64,
    pub key_size: i64,
    pub value_size: i64,
    pub sequence: i32,
    /// The header keys, joined by commas.
    pub header_keys: String,
    pub content: Content,
}

/// What a record holds.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are Kafka's")]
pub enum Content {
    Data { key: Option<String>, value: Option<String> },
    EndTransaction { control_type: String, coordinator_epoch: i32 },
}

/// An entry of an offset index.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are Kafka's")]
pub struct OffsetIndexEntry {
    pub offset: i64,
    pub position: u64,
}

/// An entry of a time index.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are Kafka's")]
pub struct TimeIndexEntry {
    pub timestamp: i64,
    pub offset: i64,
}

impl KafkaDump {
    /// Reads a dump.
    ///
    /// # Errors
    /// Names the line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser::default();
        let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
        for (index, line) in lines.enumerate() {
            parser.line(line).map_err(|problem| {
                let start: String = line.chars().take(120).collect();
                format!("line {}: {problem}: {start}", index + 1)
            })?;
        }
        Ok(parser.dump)
    }
}

/// What the lines that come next are about.
#[derive(Debug, Default)]
enum Section {
    /// Something that is not compared.
    #[default]
    Passed,
    Log(String),
    OffsetIndex(String),
    TimeIndex(String),
    Text(String),
}

#[derive(Debug, Default)]
struct Parser {
    dump: KafkaDump,
    section: Section,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line == "--- exit 1" {
            // Kafka gave up on the index that it was printing.
            if let Section::OffsetIndex(file) = &self.section {
                self.dump.offset_indexes.remove(file);
            }
            self.section = Section::Passed;
        } else if let Some(file) = line.strip_prefix("=== ") {
            let is_text = !file.starts_with("DumpLogSegments ");
            self.section = if is_text { Section::Text(file.to_owned()) } else { Section::Passed };
        } else if line.starts_with("--- exit") {
            self.section = Section::Passed;
        } else if line == "--- stderr" {
            // A gave-up index is told apart by the exit code, which comes after.
            if !matches!(self.section, Section::OffsetIndex(_)) {
                self.section = Section::Passed;
            }
        } else if let Some(file) = line.strip_prefix("Dumping ") {
            self.begin(file);
        } else {
            self.content(line)?;
        }
        Ok(())
    }

    fn begin(&mut self, file: &str) {
        let file = file.to_owned();
        self.section = if file.ends_with(".log") {
            self.dump.logs.insert(file.clone(), LogDump::default());
            Section::Log(file)
        } else if file.ends_with(".timeindex") {
            self.dump.time_indexes.insert(file.clone(), Vec::new());
            Section::TimeIndex(file)
        } else if file.ends_with(".index") {
            self.dump.offset_indexes.insert(file.clone(), Vec::new());
            Section::OffsetIndex(file)
        } else {
            Section::Passed
        };
    }

    fn content(&mut self, line: &str) -> Result<(), String> {
        match &self.section {
            Section::Passed => Ok(()),
            Section::Text(file) => {
                self.dump.texts.entry(file.clone()).or_default().push(line.to_owned());
                Ok(())
            }
            Section::Log(file) => {
                let log = self.dump.logs.get_mut(file).ok_or("no such log")?;
                log_line(log, line)
            }
            Section::OffsetIndex(file) => {
                let Some(fields) = line.strip_prefix("offset: ") else { return index_remark(line) };
                let (offset, position) = fields.split_once(" position: ").ok_or("no position")?;
                let entry = OffsetIndexEntry { offset: number(offset)?, position: number(position)? };
                self.dump.offset_indexes.entry(file.clone()).or_default().push(entry);
                Ok(())
            }
            Section::TimeIndex(file) => {
                let Some(fields) = line.strip_prefix("timestamp: ") else { return index_remark(line) };
                let (timestamp, offset) = fields.split_once(" offset: ").ok_or("no offset")?;
                let entry = TimeIndexEntry { timestamp: number(timestamp)?, offset: number(offset)? };
                self.dump.time_indexes.entry(file.clone()).or_default().push(entry);
                Ok(())
            }
        }
    }
}

/// Lines of an index section that are no entries.
fn index_remark(line: &str) -> Result<(), String> {
    let known = line.ends_with(" is empty.")
        || line.starts_with("Exception in thread")
        || line.starts_with("\tat ")
        || line.is_empty();
    if known { Ok(()) } else { Err("not an index entry".to_owned()) }
}

fn log_line(log: &mut LogDump, line: &str) -> Result<(), String> {
    if line.starts_with("Log starting offset: ") {
        return Ok(());
    }
    if let Some(rest) = line.strip_prefix("Found ") {
        let bytes = rest.split_once(" invalid bytes at the end of ").ok_or("a remark")?.0;
        log.invalid_tail_bytes = Some(number(bytes)?);
        return Ok(());
    }
    if line.starts_with("baseOffset: ") {
        log.batches.push(batch(line)?);
        return Ok(());
    }
    let batch = log.batches.last_mut().ok_or("before the first batch")?;
    if line.starts_with("| offset: ") {
        batch.records.push(record(line)?);
        return Ok(());
    }
    // A value with a line feed goes on in the next line.
    match batch.records.last_mut().map(|record| &mut record.content) {
        Some(Content::Data { value: Some(value), .. }) => {
            value.push('\n');
            value.push_str(line);
            Ok(())
        }
        _ => Err("neither batch nor record".to_owned()),
    }
}

fn batch(line: &str) -> Result<BatchDump, String> {
    let mut fields = Fields(line);
    Ok(BatchDump {
        base_offset: fields.number("baseOffset")?,
        last_offset: fields.number("lastOffset")?,
        count: fields.number("count")?,
        base_sequence: fields.number("baseSequence")?,
        last_sequence: fields.number("lastSequence")?,
        producer_id: fields.number("producerId")?,
        producer_epoch: fields.number("producerEpoch")?,
        leader_epoch: fields.number("partitionLeaderEpoch")?,
        is_transactional: fields.number("isTransactional")?,
        is_control: fields.number("isControl")?,
        delete_horizon: optional_long(fields.text("deleteHorizonMs")?)?,
        position: fields.number("position")?,
        timestamp_type: fields.name()?.to_owned(),
        max_timestamp: fields.value()?,
        size: fields.number("size")?,
        compression: {
            let magic: i8 = fields.number("magic")?;
            if magic != 2 {
                return Err(format!("magic {magic}"));
            }
            fields.text("compresscodec")?.to_owned()
        },
        crc: fields.number("crc")?,
        is_valid: fields.number("isvalid")?,
        records: Vec::new(),
    })
}

fn record(line: &str) -> Result<RecordDump, String> {
    let mut fields = Fields(line.strip_prefix("| ").ok_or("no record")?);
    let offset = fields.number("offset")?;
    let timestamp_type = fields.name()?.to_owned();
    let timestamp = fields.value()?;
    let key_size = fields.number("keySize")?;
    let value_size = fields.number("valueSize")?;
    let sequence = fields.number("sequence")?;
    let rest = fields.0.strip_prefix("headerKeys: [").ok_or("no header keys")?;
    let (header_keys, rest) = rest.split_once(']').ok_or("header keys do not end")?;
    let header_keys = header_keys.to_owned();
    let content = content(rest, key_size, value_size)?;
    Ok(RecordDump { offset, timestamp_type, timestamp, key_size, value_size, sequence, header_keys, content })
}

fn content(rest: &str, key_size: i64, value_size: i64) -> Result<Content, String> {
    if let Some(rest) = rest.strip_prefix(" endTxnMarker: ") {
        let (control_type, epoch) = rest.split_once(" coordinatorEpoch: ").ok_or("no coordinator epoch")?;
        let control_type = control_type.to_owned();
        return Ok(Content::EndTransaction { control_type, coordinator_epoch: number(epoch)? });
    }
    let (key, rest) = match rest.strip_prefix(" key: ") {
        None => (None, rest),
        Some(rest) => {
            // Without a value the key goes to the end of the line.
            let end =
                if value_size < 0 { rest.len() } else { rest.find(" payload: ").ok_or("no payload")? };
            let (key, rest) = rest.split_at(end);
            (Some(key.to_owned()), rest)
        }
    };
    let value = rest.strip_prefix(" payload: ").map(|text| expand(text, value_size));
    if key.is_some() != (key_size >= 0) || value.is_some() != (value_size >= 0) {
        return Err("the sizes do not fit key and value".to_owned());
    }
    Ok(Content::Data { key, value })
}

/// Long runs of NUL bytes were abbreviated when the dumps were stored.
fn expand(text: &str, size: i64) -> String {
    match usize::try_from(size) {
        Ok(size) if text == format!("<{size} NUL bytes>") => "\0".repeat(size),
        Ok(_) | Err(_) => text.to_owned(),
    }
}

fn optional_long(text: &str) -> Result<Option<i64>, String> {
    if text == "OptionalLong.empty" {
        return Ok(None);
    }
    let inner = text.strip_prefix("OptionalLong[").and_then(|rest| rest.strip_suffix(']'));
    inner.ok_or("no OptionalLong")?.parse().map(Some).map_err(|_| format!("'{text}' is not a number"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is not a value"))
}

/// `name: value name: value …`, read from the left.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn name(&mut self) -> Result<&'a str, String> {
        let (name, rest) = self.0.split_once(": ").ok_or("a field is missing")?;
        self.0 = rest;
        Ok(name)
    }

    fn value<T: FromStr>(&mut self) -> Result<T, String> {
        let (value, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        number(value)
    }

    fn text(&mut self, name: &str) -> Result<&'a str, String> {
        let found = self.name()?;
        if found != name {
            return Err(format!("field '{found}' where '{name}' belongs"));
        }
        let (value, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        Ok(value)
    }

    fn number<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
        number(self.text(name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        let dump = "Dumping a/0.log\nLog starting offset: 0\nwhat is this\n";
        assert!(KafkaDump::parse(dump).unwrap_err().starts_with("line 3"));
        assert!(KafkaDump::parse("Dumping a/0.index\nnonsense\n").is_err());
    }

    #[test]
    fn a_record_with_a_null_value_and_one_with_an_empty_value_differ() {
        let line =
            "| offset: 5 CreateTime: 7 keySize: 5 valueSize: -1 sequence: -1 headerKeys: [h0,] key: key-5";
        let RecordDump { content, header_keys, .. } = record(line).unwrap();
        assert_eq!(content, Content::Data { key: Some("key-5".to_owned()), value: None });
        assert_eq!(header_keys, "h0,");
        let line =
            "| offset: 6 CreateTime: 7 keySize: 0 valueSize: 0 sequence: -1 headerKeys: [] key:  payload: ";
        let empty = Some(String::new());
        assert_eq!(record(line).unwrap().content, Content::Data { key: empty.clone(), value: empty });
    }
}
