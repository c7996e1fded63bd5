//! `paragpu run` and `paragpu doctor PROGRAM`: programs that carry NVIDIA's
//! runtime inside.

mod carried;
mod packages;
mod switch;

use carried::{Carried, OnDisk};
use packages::Package;
pub use switch::redirected;
use switch::{NotRedirected, REDIRECTOR};

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use paragpu_redirect::facts::{Facts, TEXT};
use paragpu_redirect::image::Image;
use paragpu_redirect::symbols::{Shared, Table, shared};
use paragpu_redirect::{Interface, find};
use serde::Serialize;

use crate::arguments::Output;
use crate::error::{Error, plain, print, print_json};

/// NCCL's settings in a guest, as `/etc/nccl.conf` of the packages has them. Kernels of two
/// processes do not see shared memory coherently, so ranks use sockets, unless their GPUs
/// have peer access. A guest does not learn how near two GPUs are: NCCL asks CUDA whatever
/// the distance.
const NCCL: [(&str, &str); 2] = [("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_LEVEL", "SYS")];
/// The directory in which the packages install the guest's libraries.
const INSTALLED: &str = "/usr/lib/paragpu";
/// The loader of 64-bit programs, which can list what a program loads.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Runs a program with the guest's libraries before all others. Returns only on failure.
pub fn run(libraries: Option<&Path>, program: &OsStr, arguments: &[OsString]) -> Error {
    match command(libraries, program, arguments) {
        Ok(mut command) => Error::Run {
            program: program.into(),
            source: command.exec(),
        },
        Err(error) => error,
    }
}

/// The same as a command, for the caller to start.
pub fn command(
    libraries: Option<&Path>,
    program: &OsStr,
    arguments: &[OsString],
) -> Result<Command, Error> {
    let folder = libraries.unwrap_or(Path::new(INSTALLED));
    // The program may change its working directory before it starts others.
    let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    let redirector = folder.join(REDIRECTOR);
    if !redirector.is_file() {
        return Err(Error::NoLibraries { path: redirector });
    }
    let before = |variable: &str, first: &Path, separator: &str| {
        let mut value = first.as_os_str().to_owned();
        if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
            value.push(separator);
            value.push(rest);
        }
        value
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", before("LD_PRELOAD", &redirector, " "))
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder, ":"))
        // Overrides guest.toml.
        .env("PARAGPU_REDIRECT", "1");
    for (name, value) in NCCL {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    Ok(command)
}

/// The findings.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    ok: bool,
    objects: usize,
    runtimes: Vec<Carried>,
    /// Python packages that use CUDA.
    packages: Vec<Package>,
    /// Programs and libraries that the loader cannot load here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_loaded: Vec<NotLoaded>,
    /// Why programs started here are not redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_redirected: Option<String>,
}

/// A program or library that the loader cannot load.
#[derive(Debug, Serialize)]
struct NotLoaded {
    object: PathBuf,
    /// The loader's message.
    reason: String,
}

/// Reports the runtimes in programs, libraries and folders without running them. Fails
/// if one of them is not served, or if the loader cannot load a program.
pub fn examine(paths: &[PathBuf], output: Output) -> Result<ExitCode, Error> {
    let facts = Facts::parse(TEXT).map_err(Error::Facts)?;
    let mut found = Found::default();
    for path in paths {
        collect(path, &mut found)?;
    }
    let Found {
        objects,
        packages,
        not_loaded,
    } = found;
    let runtimes: Vec<Carried> = objects
        .iter()
        .flat_map(|object| inside(object, &facts))
        .collect();
    let missing = redirected().err();
    let fails = missing.as_ref().is_some_and(NotRedirected::fails);
    let served = |carried: &Carried| carried.served_by.is_some() && !fails;
    let report = Report {
        version: 1,
        ok: runtimes.iter().all(served) && not_loaded.is_empty(),
        objects: objects.len(),
        packages: packages::using_cuda(&packages, &objects, &runtimes),
        runtimes,
        not_loaded,
        not_redirected: missing.map(|missing| missing.to_string()),
    };
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

/// The objects in the given paths.
#[derive(Debug, Default)]
struct Found {
    objects: BTreeSet<PathBuf>,
    /// Folders that describe Python packages.
    packages: BTreeSet<PathBuf>,
    not_loaded: Vec<NotLoaded>,
}

/// Collects the objects of a path: the files of a folder, or a program and the libraries
/// that it loads at its start.
fn collect(path: &Path, into: &mut Found) -> Result<(), Error> {
    let read = |source| Error::Read {
        path: path.into(),
        source,
    };
    let found = fs::canonicalize(path)
        .or_else(|error| in_search_path(path).ok_or(error))
        .map_err(read)?;
    if found.is_dir() {
        if packages::describes_package(&found) {
            into.packages.insert(found.clone());
        }
        for entry in fs::read_dir(&found).map_err(read)? {
            let entry = entry.map_err(read)?;
            let kind = entry.file_type().map_err(read)?;
            if kind.is_dir() {
                collect(&entry.path(), into)?;
            } else if kind.is_file() && is_object(&entry.path()) {
                into.objects.insert(entry.path());
            }
        }
        return Ok(());
    }
    // Opening a FIFO would block until its other end is opened.
    if !found.is_file() || !is_object(&found) {
        return Err(Error::NoObject { path: found });
    }
    // The loader crashes on a static program, which needs no library.
    if open(&found).is_some_and(|image| image.dynamic().is_some()) {
        collect_libraries(&found, into);
    }
    into.objects.insert(found);
    Ok(())
}

/// Collects the libraries of a program. The loader lists them without running any of its code.
fn collect_libraries(program: &Path, into: &mut Found) {
    let listed = Command::new(LOADER).arg("--list").arg(program).output();
    let Ok(mut listed) = listed else { return };
    if !listed.status.success() {
        let said = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
        into.not_loaded.push(NotLoaded {
            object: program.into(),
            reason: match said.is_empty() {
                true => format!("the loader fails ({})", listed.status),
                false => said,
            },
        });
        // This lists the libraries that it finds even if it does not find all.
        let mut again = Command::new(LOADER);
        let again = again.arg(program).env("LD_TRACE_LOADED_OBJECTS", "1");
        match again.output() {
            Ok(output) => listed = output,
            Err(_) => return,
        }
    }
    for line in listed.stdout.split(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        if let Some((_, place)) = line.split_once("=> ")
            && let Some((library, _)) = place.rsplit_once(" (")
            && let Ok(library) = fs::canonicalize(library)
        {
            into.objects.insert(library);
        }
    }
}

/// Finds a command in PATH.
fn in_search_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() != 1 {
        return None;
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find_map(|candidate| fs::canonicalize(candidate).ok())
}

fn open(path: &Path) -> Option<Image<OnDisk>> {
    Image::of_file(OnDisk(File::open(path).ok()?))
}

fn is_object(path: &Path) -> bool {
    open(path).is_some()
}

/// The runtimes inside an object.
fn inside(object: &Path, facts: &Facts<'_>) -> Vec<Carried> {
    let Some(image) = open(object) else {
        return Vec::new();
    };
    let carried = |kind, releases: &str, interface: Option<Interface>, detail: &str| Carried {
        object: object.into(),
        kind,
        releases: releases.split_whitespace().map(str::to_owned).collect(),
        served_by: interface.map(Interface::library),
        build_id: image.build_id().map(|id| id.to_string()),
        detail: detail.into(),
    };
    let dynamic = image.dynamic();
    match dynamic.and_then(|dynamic| shared(&image, &dynamic)) {
        Some(Shared::Ours) => return Vec::new(),
        Some(Shared::Nvidias(interface)) => {
            let detail = match interface {
                Some(_) => "NVIDIA's shared library, by its exports",
                None => "NVIDIA's shared library, of a version that is not served",
            };
            return vec![carried("shared", "", interface, detail)];
        }
        None if !find::may_carry(&image) => return Vec::new(),
        None => {}
    }
    let (mut exact, mut alike) = (Vec::new(), None);
    find::search(&image, facts, |place| {
        if place.exact {
            let interface = Interface::of_version(place.build.newest());
            exact.push(carried(
                "static",
                place.build.releases,
                interface,
                "by its fingerprint",
            ));
        } else {
            alike = Some(place.build.newest().to_owned());
        }
    });
    if !exact.is_empty() {
        return exact;
    }
    let named = Table::of_file(image.raw()).and_then(|table| table.runtime(&image, facts));
    match (named, alike) {
        (Some(named), _) => vec![carried("static", "", named.interface, "by its symbols")],
        (None, Some(alike)) => {
            let detail = format!("an unknown build, much like {alike}");
            vec![carried("static", "", None, &detail)]
        }
        (None, None) => Vec::new(),
    }
}

fn text(report: &Report) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for carried in &report.runtimes {
        let build = match carried.releases.as_slice() {
            [] => String::new(),
            releases => format!(" {}", releases.join(", ")),
        };
        let served = match carried.served_by {
            Some(library) if report.not_redirected.is_some() => format!("{library} can serve it"),
            Some(library) => format!("redirected to {library}"),
            None => "NOT SERVED: its calls fail; see docs/redirect.md".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}: {} CUDA runtime{build} ({}): {served}",
            carried.object.display(),
            carried.kind,
            carried.detail,
        );
        if let (None, Some(id)) = (carried.served_by, &carried.build_id) {
            let _ = writeln!(text, "    build-id {id}");
        }
    }
    text.push_str(&packages::text(
        &report.packages,
        report.not_redirected.is_none(),
    ));
    let servable = |carried: &Carried| carried.served_by.is_some();
    if let Some(reason) = &report.not_redirected
        && report.runtimes.iter().any(servable)
    {
        let _ = writeln!(
            text,
            "not redirected: {reason}; `paragpu run PROGRAM` redirects one program"
        );
    }
    for NotLoaded { object, reason } in &report.not_loaded {
        let advice = match reason.contains("libcuda") {
            true => "; `paragpu run PROGRAM` adds paragpu's libraries to LD_LIBRARY_PATH",
            false => "",
        };
        let _ = writeln!(
            text,
            "{}: CANNOT START here: {}{advice}",
            object.display(),
            plain(reason)
        );
    }
    if report.runtimes.is_empty() {
        let _ = writeln!(text, "no NVIDIA CUDA runtime in {} objects", report.objects);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_cuda_carries_none() {
        let mut found = Found::default();
        collect(Path::new("sh"), &mut found).expect("every system has it");
        let objects = found.objects;
        assert!(
            objects.len() > 1,
            "the C library belongs to it: {objects:?}"
        );
        let facts = Facts::parse(TEXT).expect("sound");
        assert!(
            objects
                .iter()
                .all(|object| inside(object, &facts).is_empty())
        );
    }

    /// Compiles a C program and a library that it needs, which is missing if `missing`.
    fn program(folder: &Path, missing: bool) -> PathBuf {
        let compile = |arguments: &[&str]| {
            let mut compiler = Command::new("cc");
            let status = compiler.current_dir(folder).args(arguments).status();
            assert!(status.expect("a C compiler").success(), "{arguments:?}");
        };
        fs::write(folder.join("library.c"), "int f(void) { return 0; }").expect("it is written");
        let program = "int f(void); int main(void) { return f(); }";
        fs::write(folder.join("program.c"), program).expect("it is written");
        let library = "libneeded.so";
        compile(&["-shared", "-fPIC", "-o", library, "library.c"]);
        compile(&["-Wl,-rpath,$ORIGIN", "-o", "program", "program.c", library]);
        if missing {
            fs::remove_file(folder.join(library)).expect("it is removed");
        }
        folder.join("program")
    }

    #[test]
    fn a_program_that_cannot_start_is_reported() {
        for missing in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut found = Found::default();
            collect(&program(folder.path(), missing), &mut found).expect("a program");
            let reasons: Vec<&str> = found
                .not_loaded
                .iter()
                .map(|it| it.reason.as_str())
                .collect();
            let named = |name: &str| found.objects.iter().any(|it| it.ends_with(name));
            assert!(named("program") && named("libc.so.6"), "{found:?}");
            match reasons.as_slice() {
                [] => assert!(!missing && named("libneeded.so"), "{found:?}"),
                [reason] => assert!(missing && reason.contains("libneeded.so"), "{reason}"),
                more => panic!("{more:?}"),
            }
        }
    }

    #[test]
    fn libraries_are_named_absolutely() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        fs::write(folder.path().join(REDIRECTOR), "").expect("it is written");
        let relative = Path::new(folder.path().file_name().expect("a name"));
        let command = command(Some(relative), OsStr::new("true"), &[]).expect("a command");
        let paths: Vec<_> = command
            .get_envs()
            .filter(|(name, _)| {
                ["LD_PRELOAD", "LD_LIBRARY_PATH"]
                    .map(OsStr::new)
                    .contains(name)
            })
            .collect();
        assert_eq!(paths.len(), 2);
        for (name, value) in paths {
            let first = value.expect("it is set");
            assert!(Path::new(first).is_absolute(), "{name:?} is {first:?}");
        }
    }

    #[test]
    fn folders_are_searched_and_other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("inner")).expect("another");
        let own = env::current_exe().expect("own path");
        fs::copy(own, folder.path().join("inner/program")).expect("a copy");
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\n").expect("it is written");
        let mut found = Found::default();
        collect(folder.path(), &mut found).expect("a folder");
        assert_eq!(found.objects.len(), 1, "{found:?}");
        assert!(matches!(
            collect(&script, &mut found),
            Err(Error::NoObject { .. })
        ));
    }
}
