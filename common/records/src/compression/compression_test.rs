//! Every codec both ways, and data that is no data.

use super::*;

fn unpack(compression: Compression, packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    Payload::open(compression, packed)?.read_to_end(&mut out)?;
    Ok(out)
}

/// Text that compresses, of more than one chunk and block of every codec.
fn text() -> Vec<u8> {
    (0..40_000).flat_map(|n: u32| format!("line {n}\n").into_bytes()).collect()
}

#[test]
fn every_codec_gives_back_what_went_in() {
    for compression in Compression::ALL {
        for input in [Vec::new(), b"x".to_vec(), text()] {
            let packed = compression.compress(&input).unwrap();
            assert_eq!(unpack(compression, &packed).unwrap(), input, "{compression}");
        }
        let packed = compression.compress(&text()).unwrap().len();
        assert!(compression == Compression::None || packed < text().len() / 2, "{compression}: {packed}");
    }
}

#[test]
fn names_and_numbers_are_read_back() {
    for compression in Compression::ALL {
        assert_eq!(Compression::from_id(compression.id()), Some(compression));
        assert_eq!(compression.name().parse(), Ok(compression));
    }
    assert_eq!(Compression::from_id(5), None);
    assert!("brotli".parse::<Compression>().is_err());
}

#[test]
fn snappy_is_read_raw_framed_and_concatenated() {
    let raw = snap::raw::Encoder::new().compress_vec(b"raw block").unwrap();
    assert_eq!(unpack(Compression::Snappy, &raw).unwrap(), b"raw block");
    let framed = Compression::Snappy.compress(b"framed").unwrap();
    let twice = [framed.as_ref(), framed.as_ref()].concat();
    assert_eq!(unpack(Compression::Snappy, &twice).unwrap(), b"framedframed");
}

#[test]
fn snappy_that_claims_more_than_it_can_hold_is_refused_without_allocating_it() {
    // A raw block whose claimed length is 2^32-1.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00];
    assert!(unpack(Compression::Snappy, &claim).is_err());
}

#[test]
fn cut_off_data_is_an_error_or_a_prefix_never_something_else() {
    let text = text();
    for compression in Compression::ALL {
        let packed = compression.compress(&text).unwrap();
        for cut in [1, 5, 19, packed.len() / 2, packed.len() - 1] {
            if let Ok(out) = unpack(compression, &packed[..cut]) {
                // Nothing but the mark that ends a frame may be what is missing from a whole text.
                assert!(text.starts_with(&out), "{compression} cut to {cut}");
                assert!(out.len() < text.len() || cut == packed.len() - 1, "{compression} cut to {cut}");
            }
        }
    }
}

#[test]
fn garbage_is_an_error() {
    for compression in Compression::ALL.into_iter().filter(|c| *c != Compression::None) {
        assert!(unpack(compression, &[0xa5; 64]).is_err(), "{compression}");
    }
}
