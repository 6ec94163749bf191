//! Records as they are printed.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use highwater_records::{Header, Record};
use highwater_types::TopicPartition;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::output::{OutputFormat, json_line};

/// Prints one record: as text its value and a line feed, byte for byte; as JSON an object in a line.
pub(super) fn print(
    format: OutputFormat,
    partition: &TopicPartition,
    record: &Record,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        OutputFormat::Text => {
            out.write_all(record.value.as_deref().unwrap_or_default())?;
            out.write_all(b"\n")
        }
        OutputFormat::Json => json_line(out, &Line { partition, record }),
    }
}

/// A record as a JSON object. What is not UTF-8 stands as base64 under a name of its own: `value_base64` for `value`.
struct Line<'a> {
    partition: &'a TopicPartition,
    record: &'a Record,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { partition, record } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("topic", partition.topic.as_str())?;
        map.serialize_entry("partition", &partition.partition.get())?;
        map.serialize_entry("offset", &record.offset.get())?;
        map.serialize_entry("timestamp_ms", &record.timestamp.as_millis())?;
        bytes(&mut map, ["key", "key_base64"], record.key.as_ref())?;
        bytes(&mut map, ["value", "value_base64"], record.value.as_ref())?;
        if !record.headers.is_empty() {
            let headers: Vec<_> = record.headers.iter().map(HeaderLine).collect();
            map.serialize_entry("headers", &headers)?;
        }
        map.end()
    }
}

struct HeaderLine<'a>(&'a Header);

impl Serialize for HeaderLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("key", &self.0.key)?;
        bytes(&mut map, ["value", "value_base64"], self.0.value.as_ref())?;
        map.end()
    }
}

/// Writes bytes under the first name when they are text or absent, else under the second.
fn bytes<M: serde::ser::SerializeMap>(
    map: &mut M,
    names: [&'static str; 2],
    bytes: Option<&Bytes>,
) -> Result<(), M::Error> {
    let [as_text, as_base64] = names;
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => map.serialize_entry(as_text, &None::<&str>),
        Some((_, Ok(text))) => map.serialize_entry(as_text, text),
        Some((bytes, Err(_))) => map.serialize_entry(as_base64, &STANDARD.encode(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use highwater_types::{Offset, PartitionIndex, WallTime};

    use super::*;

    fn printed(format: OutputFormat, record: &Record) -> Vec<u8> {
        let partition = TopicPartition::new("orders".parse().unwrap(), PartitionIndex::new(3).unwrap());
        let mut out = Vec::new();
        print(format, &partition, record, &mut out).unwrap();
        out
    }

    fn record(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Record {
        Record {
            offset: Offset::new(42).unwrap(),
            timestamp: WallTime::from_millis(1000),
            sequence: -1,
            key: key.map(Bytes::from_static),
            value: value.map(Bytes::from_static),
            headers: Vec::new(),
        }
    }

    #[test]
    fn text_is_the_value_byte_for_byte() {
        assert_eq!(printed(OutputFormat::Text, &record(Some(b"k"), Some(b"\xff\x00 \r"))), b"\xff\x00 \r\n");
        assert_eq!(printed(OutputFormat::Text, &record(None, None)), b"\n");
    }

    #[test]
    fn json_tells_text_from_bytes_and_null_from_empty() {
        let line = |record: &Record| String::from_utf8(printed(OutputFormat::Json, record)).unwrap();
        assert_eq!(
            line(&record(None, Some(b""))),
            "{\"topic\":\"orders\",\"partition\":3,\"offset\":42,\"timestamp_ms\":1000,\"key\":null,\"value\":\"\"}\n"
        );
        let mut binary = record(Some(b"\xff"), Some("ä\n\"".as_bytes()));
        binary.headers.push(Header { key: "h".to_owned(), value: Some(Bytes::from_static(b"\xfe\xfd")) });
        binary.headers.push(Header { key: "n".to_owned(), value: None });
        let line = line(&binary);
        let tail = "\"key_base64\":\"/w==\",\"value\":\"ä\\n\\\"\",\
                    \"headers\":[{\"key\":\"h\",\"value_base64\":\"/v0=\"},{\"key\":\"n\",\"value\":null}]}\n";
        assert!(line.ends_with(tail), "{line}");
    }
}
