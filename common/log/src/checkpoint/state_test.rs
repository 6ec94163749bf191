//! A slot's bytes: round trip, detection of damage, room for later versions; and the bound on lost ranges.

use proptest::prelude::*;

use super::*;

fn offset(raw: i64) -> Offset {
    Offset::new(raw).unwrap()
}

fn range(start: i64, end: i64) -> OffsetRange {
    OffsetRange::new(offset(start), offset(end))
}

pub(in crate::checkpoint) fn some_state() -> CheckpointState {
    CheckpointState {
        topic_id: TopicId::new(Uuid::from_u128(7)).unwrap(),
        incarnation: Incarnation::new(0xfeed).unwrap(),
        recovery_point: offset(100),
        high_watermark: HighWatermark { offset: offset(90), epoch: LeaderEpoch::new(3) },
        log_start: offset(10),
        highest_leader_epoch: LeaderEpoch::new(4),
        highest_partition_epoch: Some(PartitionEpoch::new(0)),
        clean: true,
        boot_id: Some(Uuid::from_u128(9)),
        lost_ranges: vec![range(20, 30), range(40, 41)],
        kept_on_damage: true,
        flush_failed: true,
        flush_target: offset(110),
        unclean_loss: Some(UncleanLoss {
            election: LeaderEpoch::new(2).unwrap(),
            from: offset(50),
            committed: offset(60),
            end: offset(70),
        }),
    }
}

fn states() -> impl Strategy<Value = CheckpointState> {
    let offsets = prop::array::uniform4(0..=i64::MAX);
    let epochs = prop::array::uniform2(prop::option::of(0..=i32::MAX));
    let lost = prop::collection::vec((0..1_000_000_i64, 1..1000_i64), 0..100);
    (1..=u128::MAX, 1..=u64::MAX, offsets, epochs, any::<(Option<u64>, bool, u128)>(), lost).prop_map(
        |(
            topic,
            incarnation,
            [recovery, hw, start, target],
            [hw_epoch, highest],
            (version, clean, boot),
            lost,
        )| {
            let mut state = CheckpointState {
                topic_id: TopicId::new(Uuid::from_u128(topic)).unwrap(),
                incarnation: Incarnation::new(incarnation).unwrap(),
                recovery_point: offset(recovery),
                high_watermark: HighWatermark {
                    offset: offset(hw),
                    epoch: hw_epoch.and_then(LeaderEpoch::new),
                },
                log_start: offset(start),
                highest_leader_epoch: highest.and_then(LeaderEpoch::new),
                highest_partition_epoch: version.map(PartitionEpoch::new),
                clean,
                boot_id: Some(Uuid::from_u128(boot)).filter(|id| !id.is_nil()),
                lost_ranges: Vec::new(),
                kept_on_damage: recovery % 2 == 0,
                flush_failed: target % 2 == 0,
                flush_target: offset(target),
                unclean_loss: highest.and_then(LeaderEpoch::new).map(|election| UncleanLoss {
                    election,
                    from: offset(start),
                    committed: offset(hw),
                    end: offset(target),
                }),
            };
            for (start, count) in lost {
                state.add_lost_range(range(start, start + count));
            }
            state
        },
    )
}

proptest! {
    #[test]
    fn every_state_is_read_back(state in states(), sequence in 1..=u64::MAX) {
        let slot = state.encode(sequence);
        prop_assert_eq!(slot.len(), SLOT_BYTES);
        prop_assert_eq!(decode(&slot), Ok((sequence, state)));
    }

    #[test]
    fn any_bytes_are_no_state_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn lost_ranges_stay_bounded_and_forget_nothing(lost in prop::collection::vec((0..10_000_i64, 1..50_i64), 1..200)) {
        let mut state = some_state();
        state.lost_ranges.clear();
        for (start, count) in &lost {
            state.add_lost_range(range(*start, start + count));
        }
        prop_assert!(state.lost_ranges.len() <= LOST_RANGES_MAX);
        for (start, count) in lost {
            for at in start..start + count {
                prop_assert!(state.lost_ranges.iter().any(|r| r.contains(offset(at))), "{} is forgotten", at);
            }
        }
    }
}

#[test]
fn a_slots_bytes_are_fixed() {
    let slot = some_state().encode(5);
    assert_eq!(&slot[..20], b"HWCHKPT\n\x00\x01\x00\x97\0\0\0\0\0\0\0\x05");
    assert_eq!(u32::from_be_bytes(slot[171..175].try_into().unwrap()), crc32c::crc32c(&slot[..171]));
    assert!(slot[175..].iter().all(|b| *b == 0));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let slot = some_state().encode(5);
    for bit in 0..175 * 8 {
        let mut flipped = slot.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn a_slot_torn_at_any_sector_is_noticed() {
    let mut long = some_state();
    for i in 0..64 {
        long.add_lost_range(range(1000 + 10 * i, 1005 + 10 * i));
    }
    let (old, new) = (some_state().encode(5), long.encode(6));
    for survivors in 1..7_u8 {
        let mut torn = old.clone();
        for sector in (0..3).filter(|sector| survivors & (1 << sector) != 0) {
            torn[sector * 512..][..512].copy_from_slice(&new[sector * 512..][..512]);
        }
        // The old state is shorter than a sector; where that sector is old, the state is too.
        let read = decode(&torn);
        assert!(read.is_err() || read == Ok((5, some_state())), "sectors {survivors:b}: {read:?}");
    }
}

#[test]
fn fields_of_a_later_program_are_ignored_and_a_later_version_is_refused() {
    let slot = some_state().encode(5);
    let fields = [&slot[HEADER_BYTES..HEADER_BYTES + 151], b"more fields"].concat();
    assert_eq!(decode(&encode_slot(5, &fields)), Ok((5, some_state())));

    let mut later = slot[..171].to_vec();
    later[9] = 2;
    later.extend(crc32c::crc32c(&later).to_be_bytes());
    assert_eq!(decode(&later), Err(BadSlot::Version(2)));
}

#[test]
fn an_earlier_programs_state_expects_what_was_flushed_and_tells_no_loss() {
    let slot = some_state().encode(5);
    let without_loss = encode_slot(5, &slot[HEADER_BYTES..HEADER_BYTES + 123]);
    let expected = CheckpointState { unclean_loss: None, ..some_state() };
    assert_eq!(decode(&without_loss), Ok((5, expected.clone())));
    let earlier = encode_slot(5, &slot[HEADER_BYTES..HEADER_BYTES + 115]);
    let expected = CheckpointState { flush_target: some_state().recovery_point, ..expected };
    assert_eq!(decode(&earlier), Ok((5, expected)));
}

#[test]
fn values_that_cannot_be_are_refused_even_with_a_right_checksum() {
    let fields = some_state().encode(5)[HEADER_BYTES..HEADER_BYTES + 151].to_vec();
    let impossible = |at: usize, bytes: &[u8]| {
        let mut fields = fields.clone();
        fields[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(
            decode(&encode_slot(5, &fields)),
            Err(BadSlot::Damaged("impossible values")),
            "field at {at}"
        );
    };
    impossible(0, &[0; 16]);
    impossible(16, &[0; 8]);
    impossible(24, &[0xff; 8]);
    impossible(40, &[0x80, 0, 0, 0]);
    impossible(81, &[0, 65]);
    impossible(81, &[0, 3]);
    impossible(83, &i64::to_be_bytes(31));
    impossible(115, &i64::to_be_bytes(-1));
    impossible(123, &i32::to_be_bytes(-2));
    impossible(143, &i64::to_be_bytes(-1));
    assert_eq!(decode(&encode_slot(0, &fields)), Err(BadSlot::Damaged("impossible values")), "sequence 0");
    assert_eq!(decode(&encode_slot(5, &fields[..50])), Err(BadSlot::Damaged("impossible values")), "too few");
}

#[test]
fn the_nearest_lost_ranges_are_joined_above_the_bound() {
    let mut state = some_state();
    state.lost_ranges.clear();
    for i in 0..64 {
        state.add_lost_range(range(100 * i, 100 * i + 10));
    }
    assert_eq!(state.lost_ranges.len(), 64);
    state.add_lost_range(range(315, 320));
    assert_eq!(state.lost_ranges.len(), 64);
    assert!(state.lost_ranges.contains(&range(300, 320)));
    state.add_lost_range(range(7, 7));
    assert!(state.lost_ranges.contains(&range(0, 10)), "an empty range changes nothing");
}
