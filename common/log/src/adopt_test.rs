//! Adopting directories of Kafka's form: built here batch by batch, so that each fault is known to the byte.

use super::*;
use crate::log::fixture_test::{
    NOW, TestDisk, batch_dated, concat, e, inc, names_in, o, open, partition, read_all, stamped, topic,
};
use crate::{Log, LogConfig};
use bytes::Bytes;

const LOG_0: &str = "00000000000000000000.log";

/// A directory as Kafka leaves it, with the given files.
fn kafka_dir<D: TestDisk>(disk: &D, files: &[(&str, Vec<u8>)]) -> Adoptable {
    let dir = disk.data_dir().join("kafka/orders-0");
    disk.storage().create_dir_all(&dir).unwrap();
    for (name, bytes) in files {
        disk.storage().create_new(&dir.join(name)).unwrap().write_all_at(bytes, 0).unwrap();
    }
    list_adoptable(&disk.storage(), &disk.data_dir().join("kafka"), &partition().topic).unwrap().remove(0)
}

fn options() -> AdoptOptions {
    AdoptOptions { topic_id: topic(), incarnation: inc(9), index_interval_bytes: 4096 }
}

fn adopt<D: TestDisk>(disk: &D, source: &Adoptable, kafka: &KafkaCheckpoints) -> Result<Adopted, OpenError> {
    adopt_partition(&disk.storage(), source, disk.data_dir(), kafka, &options())
}

fn batches() -> Bytes {
    concat(&[stamped(3, 0, 0), stamped(3, 3, 0), stamped(4, 6, 2)])
}

fn known(log_start: i64, high_watermark: i64) -> KafkaCheckpoints {
    let mut kafka = KafkaCheckpoints::default();
    kafka.log_starts.offsets.insert(partition(), o(log_start));
    kafka.high_watermarks.offsets.insert(partition(), o(high_watermark));
    kafka
}

fn adopted_log<D: TestDisk>(disk: &D) -> Log<D::Storage> {
    let (log, report) = open(disk, LogConfig::default());
    assert_eq!((report.incarnation, report.renewal, report.damage), (inc(9), None, vec![]));
    assert_eq!(report.repairs, [], "an adopted log needs no repair");
    log
}

fn a_directory_is_copied_byte_for_byte<D: TestDisk>() {
    let disk = D::new();
    let metadata = format!("version: 0\ntopic_id: {}\n", topic().to_kafka_text());
    let source = kafka_dir(
        &disk,
        &[
            (LOG_0, batches().to_vec()),
            ("00000000000000000000.index", vec![0; 10 << 10]),
            ("00000000000000000000.timeindex", vec![0; 10 << 10]),
            ("00000000000000000010.snapshot", vec![1, 2, 3]),
            ("leader-epoch-checkpoint", b"0\n3\n0 0\n2 6\n7 10\n".to_vec()),
            ("partition.metadata", metadata.into_bytes()),
        ],
    );
    assert_eq!(source.topic_id, Some(topic()));
    let adopted = adopt(&disk, &source, &known(4, 9)).unwrap();
    assert_eq!((adopted.log_start, adopted.log_end, adopted.high_watermark), (o(4), o(10), o(9)));
    assert_eq!((adopted.highest_epoch, adopted.torn_bytes), (Some(e(7)), 0));
    assert_eq!(adopted.left_out, ["00000000000000000010.snapshot"]);
    let log = adopted_log(&disk);
    assert_eq!(read_all(&log, o(4)), batches()[stamped(3, 0, 0).len()..]);
    assert_eq!(log.epochs().latest().unwrap().epoch, e(7), "a leadership without a record");
    let names = names_in(&disk.storage(), log.directory());
    assert!(
        names.contains(&"checkpoint".to_owned())
            && !names.contains(&"00000000000000000010.snapshot".to_owned())
    );
    assert!(
        matches!(adopt(&disk, &source, &known(0, 0)), Err(OpenError::Refused(_))),
        "not over an existing one"
    );
}

fn a_torn_tail_is_left_out_of_the_copy<D: TestDisk>() {
    let disk = D::new();
    let mut torn = batches().to_vec();
    torn.truncate(torn.len() - 37);
    let source = kafka_dir(&disk, &[(LOG_0, torn.clone())]);
    let adopted = adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap();
    assert_eq!((adopted.log_end, adopted.highest_epoch), (o(6), Some(e(0))));
    assert_eq!(adopted.torn_bytes + adopted.bytes, torn.len() as u64);
    assert_eq!(adopted_log(&disk).log_end(), o(6));
    let kept = disk.storage().read_small(&source.directory.join(LOG_0), 1 << 20).unwrap();
    assert_eq!(kept, torn, "the source is only read");
}

fn damage_is_refused_with_its_place<D: TestDisk>() {
    let first = stamped(3, 0, 0).len();
    for at in [first + 70, first + 8, first + 20] {
        let disk = D::new();
        let mut flipped = batches().to_vec();
        flipped[at] ^= 0x40;
        let source = kafka_dir(&disk, &[(LOG_0, flipped)]);
        let error = adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap_err();
        assert!(
            matches!(&error, OpenError::Damaged { position, .. } if *position == first as u64),
            "{at}: {error}"
        );
        assert!(!disk.storage().exists(&disk.data_dir().join("orders-0")).unwrap());
    }
}

fn damage_before_another_segment_is_refused<D: TestDisk>() {
    let disk = D::new();
    let mut torn = batches().to_vec();
    torn.truncate(torn.len() - 1);
    let next = stamped(1, 10, 2).to_vec();
    let source = kafka_dir(&disk, &[(LOG_0, torn), ("00000000000000000010.log", next)]);
    assert!(matches!(adopt(&disk, &source, &KafkaCheckpoints::default()), Err(OpenError::Damaged { .. })));
}

/// The bases of the copy's segments.
fn bases<D: TestDisk>(disk: &D) -> Vec<i64> {
    let names = names_in(&disk.storage(), &disk.data_dir().join("orders-0"));
    names.iter().filter_map(|name| name.strip_suffix(".log")).map(|base| base.parse().unwrap()).collect()
}

fn gaps_of_compaction_are_adopted<D: TestDisk>() {
    let disk = D::new();
    let sent = [stamped(3, 0, 0), stamped(1, 50, 0), stamped(2, 100, 1)];
    let source = kafka_dir(
        &disk,
        &[(LOG_0, concat(&sent[..2]).to_vec()), ("00000000000000000090.log", sent[2].to_vec())],
    );
    let adopted = adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap();
    assert_eq!((adopted.log_end, adopted.highest_epoch), (o(102), Some(e(1))));
    assert_eq!(bases(&disk), [0, 51], "segments touch");
    let log = adopted_log(&disk);
    assert_eq!(read_all(&log, o(0)), concat(&sent));
    crate::log::fixture_test::kill(log);
    let (log, report) = open(&disk, LogConfig::default());
    assert_eq!((log.log_end(), report.damage), (o(102), vec![]), "nor does a restart take them for damage");
}

fn a_gap_at_the_end_is_filled_without_a_record<D: TestDisk>() {
    let disk = D::new();
    let last = stamped(3, 0, 4).to_vec();
    let source = kafka_dir(&disk, &[(LOG_0, last.clone()), ("00000000000000000009.log", vec![])]);
    let adopted = adopt(&disk, &source, &known(0, 9)).unwrap();
    assert_eq!((adopted.log_end, adopted.high_watermark), (o(9), o(9)), "no offset is given out again");
    let log = adopted_log(&disk);
    let held = read_all(&log, o(0));
    assert_eq!(held[..last.len()], last);
    let filling = highwater_records::batches(&held[last.len()..]).next().unwrap().unwrap();
    assert_eq!((filling.base_offset(), filling.next_offset(), filling.record_count()), (o(3), o(9), 0));
    assert!(filling.crc_ok() && filling.leader_epoch() == Some(e(4)));
    assert_eq!(adopted.bytes, last.len() as u64, "the source's bytes");
}

fn a_gap_that_no_segment_can_hold_stays_one<D: TestDisk>() {
    const FAR: i64 = 3_000_000_000;
    let disk = D::new();
    let sent = [stamped(3, 0, 0), stamped(2, FAR, 0), stamped(2, FAR + 100, 0)];
    let later = concat(&sent[1..]).to_vec();
    let source = kafka_dir(&disk, &[(LOG_0, sent[0].to_vec()), ("00000000002999999000.log", later)]);
    assert_eq!(adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap().log_end, o(FAR + 102));
    assert_eq!(bases(&disk), [0, FAR]);
    let log = adopted_log(&disk);
    assert_eq!((read_all(&log, o(0)), log.damage()), (concat(&sent).to_vec(), vec![]));
}

fn a_segment_of_the_source_that_touching_makes_too_wide_is_parted<D: TestDisk>() {
    const BASE: i64 = 2_000_000_000;
    let disk = D::new();
    // Kafka's second segment holds offsets up to 4,000,000,000; from offset 3 on none does.
    let sent = [stamped(3, 0, 0), stamped(2, BASE, 0), stamped(2, 2 * BASE, 0)];
    let later = concat(&sent[1..]).to_vec();
    let source = kafka_dir(&disk, &[(LOG_0, sent[0].to_vec()), ("00000000002000000000.log", later)]);
    adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap();
    assert_eq!(bases(&disk), [0, 3, BASE + 2]);
    let log = adopted_log(&disk);
    assert_eq!((read_all(&log, o(0)), log.damage()), (concat(&sent).to_vec(), vec![]));
}

fn what_lies_below_the_log_start_is_not_copied<D: TestDisk>() {
    let disk = D::new();
    let sent = [stamped(3, 0, 0), stamped(2, 10, 0)];
    let source =
        kafka_dir(&disk, &[(LOG_0, sent[0].to_vec()), ("00000000000000000010.log", sent[1].to_vec())]);
    let adopted = adopt(&disk, &source, &known(5, 12)).unwrap();
    assert_eq!((adopted.log_start, bases(&disk)), (o(5), vec![3]));
    assert_eq!(read_all(&adopted_log(&disk), o(5)), sent[1]);
}

fn a_segment_that_goes_missing_after_adoption_is_damage<D: TestDisk>() {
    let disk = D::new();
    let logs = [(LOG_0, 0), ("00000000000000000020.log", 20), ("00000000000000000040.log", 40)];
    let source = kafka_dir(&disk, &logs.map(|(name, base)| (name, stamped(3, base, 0).to_vec())));
    adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap();
    assert_eq!(bases(&disk), [0, 3, 23]);
    disk.storage().remove_file(&disk.data_dir().join("orders-0/00000000000000000003.log")).unwrap();
    let (log, report) = open(&disk, LogConfig::default());
    let lost: Vec<_> = report.damage.iter().map(|damage| (damage.range.start, damage.range.end)).collect();
    assert_eq!((lost, log.log_end()), (vec![(o(3), o(23))], o(43)));
}

fn an_empty_partition_begins_at_its_log_start<D: TestDisk>() {
    let disk = D::new();
    let source = kafka_dir(&disk, &[("00000000000000000017.log", vec![])]);
    let adopted = adopt(&disk, &source, &known(17, 17)).unwrap();
    assert_eq!((adopted.log_start, adopted.log_end, adopted.highest_epoch), (o(17), o(17), None));
    assert_eq!(adopted_log(&disk).log_end(), o(17));
}

fn old_message_formats_are_refused<D: TestDisk>() {
    let disk = D::new();
    let mut old = batch_dated(1, 10, NOW).to_vec();
    old[16] = 1;
    let source = kafka_dir(&disk, &[(LOG_0, old)]);
    let error = adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap_err();
    assert!(error.to_string().contains("format 1"), "{error}");
}

fn a_half_made_copy_is_thrown_away<D: TestDisk>() {
    let disk = D::new();
    let source = kafka_dir(&disk, &[(LOG_0, batches().to_vec())]);
    let half = disk.data_dir().join("orders-0.adopting");
    disk.storage().create_dir_all(&half).unwrap();
    disk.storage().create_new(&half.join(LOG_0)).unwrap();
    adopt(&disk, &source, &KafkaCheckpoints::default()).unwrap();
    assert_eq!(adopted_log(&disk).log_end(), o(10));
    assert!(!disk.storage().exists(&half).unwrap());
}

crate::log::fixture_test::on_both_disks!(
    a_directory_is_copied_byte_for_byte,
    a_torn_tail_is_left_out_of_the_copy,
    damage_is_refused_with_its_place,
    damage_before_another_segment_is_refused,
    gaps_of_compaction_are_adopted,
    a_gap_at_the_end_is_filled_without_a_record,
    a_gap_that_no_segment_can_hold_stays_one,
    a_segment_of_the_source_that_touching_makes_too_wide_is_parted,
    what_lies_below_the_log_start_is_not_copied,
    a_segment_that_goes_missing_after_adoption_is_damage,
    an_empty_partition_begins_at_its_log_start,
    old_message_formats_are_refused,
    a_half_made_copy_is_thrown_away,
);
