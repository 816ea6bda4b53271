//! Heat maps: a committed picture, and matrices of more ranks than cells.

use consort_algorithms::export::{Heat, HeatCell, HeatGroup, bytes_text, heat_svg};

use crate::common::snapshot;

fn heat(ranks: u32, cells: Vec<HeatCell>) -> Heat {
    Heat {
        title: "A ring & an exchange".into(),
        notes: vec!["what it is".into()],
        ranks,
        series: vec![("ring".into(), 0), ("exchange".into(), 1), ("silent".into(), 2)],
        cells,
        groups: vec![HeatGroup { ranks: 4, name: "host".into() }],
    }
}

fn cell(from: u32, to: u32, ring: u64, exchange: u64) -> HeatCell {
    HeatCell { from, to, bytes: vec![ring, exchange, 0] }
}

#[test]
fn pictures_are_the_committed_ones() {
    let ring = (0..8).map(|from| cell(from, (from + 1) % 8, 1000, u64::from(from) * 400));
    let cells = ring.chain([cell(0, 5, 0, 1), cell(5, 0, 0, 70_000)]).collect();
    let text = heat_svg(&heat(8, cells));
    snapshot("heat_8.svg", &text);
    assert!(text.contains("<title>rank 5 to rank 0: 70.0 kB, most of it exchange</title>"), "{text}");
    assert!(text.contains("ring: 8.00 kB (9.0 %)") && !text.contains("silent"), "{text}");
    assert!(text.contains("host 1") && text.contains("A ring &amp; an exchange"), "{text}");
}

#[test]
fn many_ranks_share_cells() {
    let cells: Vec<HeatCell> = (0..4096).map(|from| cell(from, (from + 1) % 4096, 10, 0)).collect();
    let text = heat_svg(&heat(4096, cells));
    assert!(text.contains("A cell is 16 senders by 16 receivers."));
    // Neighbours in a cell, and the last of one to the first of the next.
    assert!(text.contains("<title>ranks 16-31 to ranks 16-31: 150 B, most of it ring</title>"));
    assert!(text.contains("<title>ranks 4080-4095 to ranks 0-15: 10 B, most of it ring</title>"));
    // All with all: too many cells for titles, and one rectangle a row where they look alike.
    let all = (0..256 * 256).map(|pair| cell(pair / 256, pair % 256, 5, 0)).collect();
    let text = heat_svg(&heat(256, all));
    assert!(text.len() < 100_000 && !text.contains("rank 0 to"), "{} bytes", text.len());
    let empty = heat_svg(&heat(3, Vec::new()));
    assert!(empty.ends_with("</svg>\n") && !empty.contains("NaN") && !empty.contains("inf"));
}

#[test]
fn bytes_have_three_digits() {
    let texts = [0, 999, 1000, 9_996, 99_950, 999_499, 999_500, 1_500_000_000, u64::MAX].map(bytes_text);
    assert_eq!(
        texts,
        ["0 B", "999 B", "1.00 kB", "10.0 kB", "100 kB", "999 kB", "1.00 MB", "1.50 GB", "18.4 EB"]
    );
}
