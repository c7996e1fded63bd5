//! `paragpu doctor`: examines the configuration and what it names, and prints findings.

mod confinement;
mod guest;
mod host;
mod pool;
mod report;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use crate::arguments::{Output, Side};
use crate::error::{Error, print, print_json};
use paragpu_control::terminal::plain;
use report::{Report, State};

/// Examines and prints; fails if programs will not find a GPU.
pub fn run(
    side: Option<Side>,
    of_pool: bool,
    control: Option<&Path>,
    output: Output,
) -> Result<ExitCode, Error> {
    let mut report = Report {
        version: 1,
        ..Report::default()
    };
    if of_pool {
        pool::examine(&mut report);
    } else if side != Some(Side::Host) {
        guest::examine(&mut report);
    }
    if side == Some(Side::Host) || (side.is_none() && !of_pool && host::is_one(control)) {
        host::examine(&mut report, control);
    }
    report.ok = report
        .findings
        .iter()
        .all(|finding| finding.state != State::Bad);
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => print(plain(&text(&report)))?,
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let names = report.findings.iter().map(|finding| finding.what.len());
    let width = names.max().unwrap_or_default();
    let mut side = "";
    for finding in &report.findings {
        if finding.side != side {
            side = finding.side;
            out += &format!("{side}\n");
        }
        let mark = match finding.state {
            State::Good => "ok",
            State::Absent => "-",
            State::Warning => "note",
            State::Bad => "BAD",
        };
        out += &format!("  {mark:<4}  {:<width$} {}\n", finding.what, finding.detail);
        if let Some(advice) = &finding.advice {
            out += &format!("        {:<width$} → {advice}\n", "");
        }
    }
    out
}
