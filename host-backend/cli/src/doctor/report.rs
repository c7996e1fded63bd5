//! The findings of `paragpu doctor`.

use paragpu_config::{Configuration, Loaded, Origin};
use serde::Serialize;

/// The verdict on a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Correct.
    Good,
    /// Missing, and not needed in this configuration.
    Absent,
    /// May be a problem.
    Warning,
    /// Keeps programs from finding a GPU.
    Bad,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) side: &'static str,
    pub(super) what: String,
    pub(super) state: State,
    pub(super) detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// The findings so far.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) ok: bool,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn add(
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

    /// Adds the files of a side's configuration and the keys that they set.
    pub(super) fn configuration<T: Configuration>(
        &mut self,
        side: &'static str,
        loaded: &Loaded<T>,
    ) {
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
    pub(super) fn advise(&mut self, advice: impl Into<String>) {
        self.advice = Some(advice.into());
    }
}
