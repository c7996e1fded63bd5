//! `paragpu doctor`: what is configured, what answers, what is missing.

mod confinement;
mod guest;
mod host;
mod pool;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use paragpu_config::{Configuration, Loaded, Origin};
use serde::Serialize;

use crate::arguments::{Output, Side};
use crate::error::{Error, print, print_json};

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Good,
    /// Not there, and not needed as things are configured.
    Absent,
    /// May matter.
    Warning,
    /// Keeps programs from finding a GPU.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    side: &'static str,
    what: String,
    state: State,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// What was found so far.
#[derive(Debug, Default, Serialize)]
struct Report {
    version: u32,
    ok: bool,
    findings: Vec<Finding>,
}

impl Report {
    fn add(
        &mut self,
        side: &'static str,
        what: impl Into<String>,
        state: State,
        detail: impl Into<String>,
    ) -> &mut Finding {
        self.findings.push(Finding {
            side,
            what: what.into(),
            state,
            detail: detail.into(),
            advice: None,
        });
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }

    /// Adds where a side's configuration comes from, and what it sets.
    fn configuration<T: Configuration>(&mut self, side: &'static str, loaded: &Loaded<T>) {
        let files: Vec<String> = loaded
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let detail = if files.is_empty() {
            "no file: the defaults".to_owned()
        } else {
            files.join(", ")
        };
        self.add(side, "configuration", State::Good, detail);
        for entry in loaded.entries() {
            if *entry.origin != Origin::Default {
                let detail = format!("{} = {} ({})", entry.key, entry.value, entry.origin);
                self.add(side, "", State::Good, detail);
            }
        }
    }
}

impl Finding {
    fn advise(&mut self, advice: impl Into<String>) {
        self.advice = Some(advice.into());
    }
}

/// Looks and prints; fails where programs will not find a GPU.
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
        Output::Text => print(text(&report))?,
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// "1 session", "2 sessions".
fn counted(count: impl Into<u64>, one: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
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
