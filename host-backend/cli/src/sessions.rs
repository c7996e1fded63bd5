//! Lists and ends sessions, and shows the daemon.

use comfy_table::{CellAlignment, Table, presets};
use paragpu_config::Size;
use paragpu_control::admin::{
    Activity, CheckpointInfo, DeviceInfo, Request, Response, SessionInfo, Stats, VmInfo,
};
use paragpu_control::terminal::{counted, plain, plain_line};

use crate::arguments::{Output, Share};
use crate::control::{Control, unexpected};
use crate::error::{Error, print, print_json};

/// `paragpu list`.
pub fn list(control: &Control, job: Option<u64>, output: Output) -> Result<(), Error> {
    let Response::Sessions { mut sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    sessions.retain(|session| job.is_none() || session.job == job);
    if output == Output::Json {
        return print_json(&sessions);
    }
    let mut head = vec![
        "SESSION", "VM", "PID", "WORKER", "DEVICE", "VIA", "AGE", "CALLS", "LAUNCHES", "MEMORY",
    ];
    let written = sessions.iter().any(|session| session.checkpoint.is_some());
    if written {
        head.push("WRITTEN");
    }
    let mut table = table(&head);
    for number in [0, 2, 3, 6, 7, 8, 9] {
        right(&mut table, number);
    }
    for session in &sessions {
        let mut row = row(session).to_vec();
        if written {
            row.push(
                session
                    .checkpoint
                    .as_ref()
                    .map_or_else(String::new, last_written),
            );
        }
        table.add_row(cells(row));
    }
    print(lines(&table))
}

fn last_written(checkpoint: &CheckpointInfo) -> String {
    let ago = format!("{} ago", age(checkpoint.age));
    match &checkpoint.error {
        None => ago,
        Some(error) => format!("{ago}; since then {error}"),
    }
}

fn row(session: &SessionInfo) -> [String; 10] {
    let count = |number: u64| {
        if session.counted {
            number.to_string()
        } else {
            "-".into()
        }
    };
    [
        session.id.to_string(),
        session.vm.clone(),
        session.guest_pid.to_string(),
        session.worker_pid.to_string(),
        session.device.clone(),
        session.communicator.clone(),
        match (session.ending, session.activity) {
            (true, _) => "ending".into(),
            (_, Activity::Serving) => age(session.age),
            (_, Activity::Arriving) => "arriving".into(),
            (_, Activity::Moving) => "moving".into(),
            (_, Activity::Writing) => "writing".into(),
        },
        count(session.calls),
        count(session.launches),
        if session.counted {
            bytes(session.device_memory)
        } else {
            "-".into()
        },
    ]
}

/// `paragpu end`.
pub fn end(control: &Control, session: u64, output: Output) -> Result<(), Error> {
    let response = control.ask(&Request::End { session })?;
    let Response::Ending { .. } = response else {
        return Err(unexpected());
    };
    match output {
        Output::Json => print_json(&response),
        Output::Text => print(format!("session {session} ends\n")),
    }
}

/// `paragpu share`.
pub fn share(control: &Control, share: &Share) -> Result<(), Error> {
    let request = Request::Share {
        session: share.session,
        vm: share.vm.clone(),
        weight: share.weight,
        cap: share.cap,
        priority: share.priority,
    };
    let Response::Shared(given) = control.ask(&request)? else {
        return Err(unexpected());
    };
    if share.output == Output::Json {
        return print_json(&given);
    }
    print(format!(
        "weight {}, cap {} %, priority {}\n",
        given.weight, given.cap, given.priority
    ))
}

/// `paragpu status`.
pub fn status(control: &Control, output: Output) -> Result<(), Error> {
    let Response::Stats(stats) = control.ask(&Request::Stats {})? else {
        return Err(unexpected());
    };
    if output == Output::Json {
        return print_json(&stats);
    }
    let mut text = summary(&stats);
    if !stats.devices.is_empty() {
        let mut table = table(&[
            "DEVICE",
            "ON HOST",
            "NAME",
            "MEMORY",
            "SESSIONS",
            "IDLE WORKERS",
            "PROBLEM",
        ]);
        for number in [0, 3, 4, 5] {
            right(&mut table, number);
        }
        for device in &stats.devices {
            table.add_row(cells(device_row(device)));
        }
        text.push('\n');
        text += &lines(&table);
    }
    if !stats.vms.is_empty() {
        let mut table = table(&["VM", "SESSIONS", "LIMIT", "MEMORY", "LIMIT"]);
        (1..5).for_each(|column| right(&mut table, column));
        for vm in &stats.vms {
            table.add_row(cells(vm_row(vm)));
        }
        text.push('\n');
        text += &lines(&table);
    }
    print(text)
}

fn summary(stats: &Stats) -> String {
    let search = match (&stats.problem, stats.ready) {
        (Some(problem), _) => format!("no device: {}\n", plain(problem)),
        (None, false) => "looking for devices\n".into(),
        (None, true) => String::new(),
    };
    format!(
        "up {}, {} of at most {}, {} begun, {} refused, {} crashed, {} waiting\n{search}",
        age(stats.uptime),
        stats.sessions,
        counted(stats.session_limit, "session"),
        stats.begun,
        stats.refused,
        stats.crashed,
        stats.waiting,
    )
}

fn device_row(device: &DeviceInfo) -> [String; 7] {
    [
        device.ordinal.to_string(),
        device.device.clone(),
        device.name.clone(),
        bytes(device.memory),
        device.sessions.to_string(),
        device.idle.to_string(),
        device.problem.clone().unwrap_or_default(),
    ]
}

fn vm_row(vm: &VmInfo) -> [String; 5] {
    let limit = |limit: u64, shown: String| if limit == 0 { "-".into() } else { shown };
    [
        vm.vm.clone(),
        vm.sessions.to_string(),
        limit(vm.session_limit, vm.session_limit.to_string()),
        bytes(vm.device_memory),
        limit(vm.device_memory_limit, bytes(vm.device_memory_limit)),
    ]
}

/// The cells of a row, which may have names and reasons of others.
pub fn cells(row: impl IntoIterator<Item = String>) -> Vec<String> {
    row.into_iter().map(|cell| plain_line(&cell)).collect()
}

/// A table without borders.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head);
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table
}

pub fn right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A table as text, without trailing blanks.
pub fn lines(table: &Table) -> String {
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// A number of bytes with a unit; exact if that is short.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count}B");
    }
    let exact = Size(count).to_string();
    if exact.len() <= 7 && exact.ends_with('B') {
        return exact;
    }
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1}{unit}")
}

/// A duration for display.
pub fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_shown_and_not_obeyed() {
        let vm = VmInfo {
            vm: "a\u{1b}[31m\nb".into(),
            sessions: 1,
            session_limit: 0,
            device_memory: 0,
            device_memory_limit: 0,
        };
        let mut table = table(&["VM", "SESSIONS", "LIMIT", "MEMORY", "LIMIT"]);
        table.add_row(cells(vm_row(&vm)));
        let text = lines(&table);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("a\\u{1b}[31m\\nb"), "{text}");
    }

    #[test]
    fn sizes_and_ages_are_readable() {
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(1023), "1023B");
        assert_eq!(bytes(4096), "4KiB");
        assert_eq!(bytes(1536), "1.5KiB");
        assert_eq!(bytes((1 << 30) + (1 << 29)), "1536MiB");
        assert_eq!(bytes((1 << 30) + 1), "1.0GiB");
        assert_eq!(bytes((3 << 40) + 1), "3.0TiB");
        assert_eq!(age(59.9), "59s");
        assert_eq!(age(61.0), "1m01s");
        assert_eq!(age(7200.0), "2h00m");
        assert_eq!(age(90_000.0), "1d01h");
    }
}
