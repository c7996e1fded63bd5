//! How commands fail, without a daemon that serves them: their exit status and message.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
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

#[test]
fn certificates_that_do_not_exist_are_no_good_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let config = "[tcp]\nca = '/nowhere/ca.pem'\ncertificate = '/a'\nkey = '/b'\n";
    std::fs::write(&file, config).unwrap();
    for side in ["guest", "host"] {
        let mut check = paragpu();
        let check = check.args(["config", "check", side, "--file"]).arg(&file);
        let check = check.output().unwrap();
        assert_eq!(check.status.code(), Some(1));
        let said = text(&check.stdout);
        let expected = format!("{side}: tcp.ca = /nowhere/ca.pem cannot be used: ");
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[test]
fn certificates_of_another_user_are_not_found_bad() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let close = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut make = paragpu();
    let made = make.arg("certificate").arg(directory.path()).arg("gpu1");
    let made = made.output().unwrap();
    std::fs::write(file("host.toml"), &made.stdout).unwrap();
    close(directory.path(), 0o755);
    close(&file("gpu1.key"), 0o000);
    let mut doctor = paragpu();
    doctor
        .env("PARAGPU_HOST_CONFIG", file("host.toml"))
        .args(["doctor", "--side", "host"]);
    if std::fs::metadata(directory.path()).unwrap().uid() == 0 {
        // Root may read it all the same.
        doctor.uid(65534).gid(65534);
    }
    let said = match doctor.output() {
        Ok(output) => text(&output.stdout),
        Err(error) => {
            println!("skipped: certificates_of_another_user_are_not_found_bad: {error}");
            return;
        }
    };
    let line = said.lines().find(|line| line.contains("migration  "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.trim_start().starts_with("note") && line.contains("not checked"),
        "{said}"
    );
}

#[test]
fn no_incomplete_certificate_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    // Every write fails, as on a full disk.
    let full = "trap '' XFSZ; ulimit -f 0; exec \"$0\" certificate \"$1\" gpu1";
    let mut command = Command::new("sh");
    let command = command.args(["-c", full, env!("CARGO_BIN_EXE_paragpu")]);
    let failed = command.arg(directory.path()).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stderr));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut again = paragpu();
    let again = again.arg("certificate").arg(directory.path()).arg("gpu1");
    assert!(again.status().unwrap().success());
}

#[test]
fn a_daemon_that_ends_is_not_of_another_release() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let listener = UnixListener::bind(&control).unwrap();
    let server = std::thread::spawn(move || {
        for answer in ["", r#"{"answer":"sess"#] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            requests.read_line(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let list = paragpu()
            .arg("list")
            .arg("--control")
            .arg(&control)
            .output();
        let list = list.unwrap();
        assert_eq!(list.status.code(), Some(1));
        let said = text(&list.stderr);
        assert!(
            said.contains("ended the connection: it was stopped"),
            "{said}"
        );
    }
    server.join().unwrap();
}
