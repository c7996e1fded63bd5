//! How commands fail, without a daemon: their exit status and message.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

fn paragpu() -> Command {
    Command::new(env!("CARGO_BIN_EXE_paragpu"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn directories_of_checkpoints_are_text() {
    let directory = tempfile::tempdir().unwrap();
    let _server = UnixListener::bind(directory.path().join("control")).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"/tmp/\xff");
    let control = directory.path().join("control");
    let output = paragpu()
        .args(["checkpoint", "12", "--control"])
        .args([control.as_os_str(), name])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("is not UTF-8"), "{said}");
}

#[test]
fn programs_that_cannot_be_run_have_the_shells_status() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("libparagpu-redirect.so"), "").unwrap();
    std::fs::write(file("no-program"), "").unwrap();
    for (program, status) in [(file("missing"), 127), (file("no-program"), 126)] {
        let libraries = directory.path().to_str().unwrap();
        let run = ["run", "--libraries", libraries, &program];
        let failed = paragpu().args(run).output().unwrap();
        assert_eq!(failed.status.code(), Some(status), "{program}");
    }
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = paragpu().arg("--help").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("paragpu: cannot print: "), "{said}");
}
