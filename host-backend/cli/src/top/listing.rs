//! A view as tables of text, for the terminal and for print.

use paragpu_control::turn::TimeShare;

use super::view::{Gpu, Row, View, Vm};
use crate::sessions::{age, bytes, cells, lines, right, table};

/// One table.
pub(super) struct Listing {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<String>>,
}

/// A column's title, at which side its cells stand, and its rank: a narrow screen omits the
/// columns of the highest ranks first.
pub(super) type Column = (&'static str, Side, u8);

/// At which side of a column its cells stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

use Side::{Left, Right};

const GPUS: &[Column] = &[
    ("GPU", Left, 0),
    ("NAME", Left, 5),
    ("SESSIONS", Right, 2),
    ("MEMORY", Right, 1),
    ("CALLS/S", Right, 3),
    ("BYTES/S", Right, 4),
];
const VMS: &[Column] = &[
    ("VM", Left, 0),
    ("SESSIONS", Right, 2),
    ("MEMORY", Right, 1),
    ("CALLS/S", Right, 3),
    ("BYTES/S", Right, 4),
];
const SESSIONS: &[Column] = &[
    ("SESSION", Right, 0),
    ("VM", Left, 1),
    ("PID", Right, 8),
    ("GPU", Left, 4),
    ("VIA", Left, 7),
    ("CALLS/S", Right, 3),
    ("LAUNCHES/S", Right, 10),
    ("IN/S", Right, 6),
    ("OUT/S", Right, 5),
    ("MEMORY", Right, 2),
    ("SHADOWS", Right, 13),
    ("WEIGHT", Right, 12),
    ("TIME", Right, 11),
    ("AGE", Right, 9),
];

impl View {
    /// The GPUs, and where there are sessions the VMs and the sessions.
    pub(super) fn listings(&self) -> Vec<Listing> {
        let mut listings = vec![Listing {
            columns: GPUS,
            rows: self.gpus.iter().map(gpu).collect(),
        }];
        if !self.sessions.is_empty() {
            listings.push(Listing {
                columns: VMS,
                rows: self.vms.iter().map(vm).collect(),
            });
            listings.push(Listing {
                columns: SESSIONS,
                rows: self.sessions.iter().map(session).collect(),
            });
        }
        listings
    }

    /// As text, to be printed.
    pub(super) fn text(&self) -> String {
        let mut tables: Vec<String> = self.listings().into_iter().map(Listing::text).collect();
        if self.sessions.is_empty() {
            tables.push("no sessions\n".into());
        }
        tables.join("\n")
    }
}

impl Listing {
    pub(super) fn text(self) -> String {
        let head: Vec<&str> = self.columns.iter().map(|(title, ..)| *title).collect();
        let mut table = table(&head);
        for (place, (_, side, _)) in self.columns.iter().enumerate() {
            if *side == Right {
                right(&mut table, place);
            }
        }
        table.add_rows(self.rows.into_iter().map(cells));
        lines(&table)
    }
}

fn gpu(gpu: &Gpu) -> Vec<String> {
    vec![
        gpu.gpu.clone(),
        gpu.name.clone(),
        gpu.sessions.to_string(),
        of(gpu.device_memory, gpu.memory),
        count(gpu.calls_per_second),
        bytes(gpu.bytes_per_second as u64),
    ]
}

fn vm(vm: &Vm) -> Vec<String> {
    vec![
        vm.vm.clone(),
        vm.sessions.to_string(),
        of(vm.device_memory, vm.device_memory_limit),
        count(vm.calls_per_second),
        bytes(vm.bytes_per_second as u64),
    ]
}

fn session(row: &Row) -> Vec<String> {
    let rate = |text: String| if row.counted { text } else { "-".into() };
    vec![
        row.session.to_string(),
        row.vm.clone(),
        row.guest_pid.to_string(),
        row.gpu.clone(),
        row.communicator.clone(),
        rate(count(row.calls_per_second)),
        rate(count(row.launches_per_second)),
        rate(bytes(row.bytes_to_device_per_second as u64)),
        rate(bytes(row.bytes_from_device_per_second as u64)),
        rate(bytes(row.device_memory)),
        rate(bytes(row.shadow_memory)),
        row.share.map_or_else(|| "-".into(), weight),
        row.time
            .map_or_else(|| "-".into(), |time| format!("{:.0}%", time * 100.0)),
        age(row.age),
    ]
}

/// A weight, with a cap and a priority where there are.
fn weight(share: TimeShare) -> String {
    let mut text = share.weight.to_string();
    if share.cap < 100 {
        text += &format!(" ≤{}%", share.cap);
    }
    if share.priority > 0 {
        text += &format!(" ↑{}", share.priority);
    }
    text
}

/// A rate in few characters.
fn count(value: f64) -> String {
    match value {
        0.0..1e4 => format!("{value:.0}"),
        1e4..1e7 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.0}M", value / 1e6),
    }
}

fn of(memory: u64, limit: u64) -> String {
    match limit {
        0 => bytes(memory),
        limit => format!("{} of {}", bytes(memory), bytes(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        for (value, short) in [
            (0.0, "0"),
            (9999.4, "9999"),
            (12_345.0, "12k"),
            (2.5e7, "25M"),
        ] {
            assert_eq!(count(value), short);
        }
    }
}
