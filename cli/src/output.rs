//! What every listing has in common: the choice of a format, JSON lines, tables.
//!
//! What holds: JSON is one object a line. A table has no colours and no lines, so that `cut` and `awk` can read it too.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// How the output looks.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputArgs {
    /// How to print: text for people, or one JSON object a line.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
}

/// See [`OutputArgs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes one JSON object as a line.
pub(crate) fn json_line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// At the left: words.
    Left,
    /// At the right: numbers.
    Right,
}

/// A table: columns as wide as their widest cell, two spaces between them.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for every column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// The lines, the head first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut widths = vec![0; self.columns.len()];
        for cells in std::iter::once(&head).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &Vec<String>| {
            let mut line = String::new();
            for (((_, align), width), cell) in self.columns.iter().zip(&widths).zip(cells) {
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
                match align {
                    Align::Left => line.extend([cell, padding.as_str(), "  "]),
                    Align::Right => line.extend([padding.as_str(), cell, "  "]),
                }
            }
            line.trim_end().to_owned()
        };
        std::iter::once(&head).chain(&self.rows).map(line).collect()
    }

    /// Writes the lines.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines().into_iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("TOPIC", Align::Left), ("LAG", Align::Right), ("CAUSE", Align::Left)]);
        table.row(vec!["orders-of-this-year".into(), "7".into(), "none".into()]);
        table.row(vec!["ö".into(), "12345".into(), "catching-up".into()]);
        let expected = [
            "TOPIC                  LAG  CAUSE",
            "orders-of-this-year      7  none",
            "ö                    12345  catching-up",
        ];
        assert_eq!(table.lines(), expected);
    }

    #[test]
    fn a_json_line_is_one_line() {
        let mut out = Vec::new();
        json_line(&mut out, &["a\nb"]).unwrap();
        assert_eq!(out, b"[\"a\\nb\"]\n");
    }
}
