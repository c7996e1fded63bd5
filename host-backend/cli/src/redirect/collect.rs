//! Programs, libraries and folders to examine, and what the kernel and the loader make of them.

use std::collections::BTreeSet;
use std::fs::{DirEntry, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use paragpu_redirect::image::Image;
use paragpu_redirect::program::{Kind, Program};
use serde::Serialize;

use super::carried::OnDisk;
use super::packages;
use crate::error::Error;

/// The loader of 64-bit programs, which can list what a program loads.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Mode bits with which a program gets its owner's or group's rights.
const SET_ID: u32 = 0o6000;
/// The extended attribute with a program's capabilities.
const CAPABILITIES: &str = "security.capability";

/// The objects in the given paths.
#[derive(Debug, Default)]
pub struct Found {
    pub objects: BTreeSet<PathBuf>,
    /// Folders that describe Python packages.
    pub packages: BTreeSet<PathBuf>,
    pub not_loaded: Vec<NotLoaded>,
    /// Programs with more rights than their user, each with its objects.
    pub privileged: Vec<(PathBuf, BTreeSet<PathBuf>)>,
    pub unread: Vec<Unread>,
}

/// A program or library that the loader cannot load.
#[derive(Debug, Serialize)]
pub struct NotLoaded {
    pub object: PathBuf,
    /// Why, in one sentence of the loader's or ours.
    pub reason: String,
}

/// A part of a folder that cannot be read.
#[derive(Debug, Serialize)]
pub struct Unread {
    pub path: PathBuf,
    pub reason: String,
}

/// Collects the objects of a path: the files of a folder, or a program and the libraries
/// that it loads at its start.
pub fn collect(path: &Path, into: &mut Found) -> Result<(), Error> {
    let read = |source| Error::Read {
        path: path.into(),
        source,
    };
    let found = fs::canonicalize(path)
        .or_else(|error| in_search_path(path).ok_or(error))
        .map_err(read)?;
    if found.is_dir() {
        into.folder(&found);
        return Ok(());
    }
    // Opening a FIFO would block until its other end is opened.
    let image = match found.is_file() {
        true => open(&found).map_err(read)?,
        false => None,
    };
    let Some(image) = image else {
        return Err(Error::NoObject { path: found });
    };
    into.program(found, &image);
    Ok(())
}

impl Found {
    /// Adds the objects of a folder and of those in it. Records what cannot be read.
    fn folder(&mut self, folder: &Path) {
        if packages::describes_package(folder) {
            self.packages.insert(folder.into());
        }
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return self.unread(folder, &error),
        };
        for entry in entries {
            match entry {
                Ok(entry) => {
                    if let Err(error) = self.entry(&entry) {
                        self.unread(&entry.path(), &error);
                    }
                }
                Err(error) => self.unread(folder, &error),
            }
        }
    }

    /// Adds what an entry of a folder names: a file, also by a link, or a folder. Links to
    /// folders may lead around in circles.
    fn entry(&mut self, entry: &DirEntry) -> io::Result<()> {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            self.folder(&path);
        }
        let file = match kind.is_symlink() {
            // A link to nothing names no object.
            true => fs::canonicalize(&path).unwrap_or(path),
            false => path,
        };
        if !file.is_file() {
            return Ok(());
        }
        if let Some(image) = open(&file)? {
            // Files with debug information may name segments that they lack.
            if file.extension().is_none_or(|name| name != "debug") {
                self.check(&file, &image);
            }
            if is_privileged(&file, &image) {
                let alone = BTreeSet::from([file.clone()]);
                self.privileged.push((file.clone(), alone));
            }
            self.objects.insert(file);
        }
        Ok(())
    }

    fn unread(&mut self, path: &Path, error: &io::Error) {
        self.unread.push(Unread {
            path: path.into(),
            reason: error.to_string(),
        });
    }

    /// Adds a program, or a library, with the libraries that it loads.
    fn program(&mut self, path: PathBuf, image: &Image<OnDisk>) {
        let mut objects = BTreeSet::from([path.clone()]);
        // The loader crashes on a static program, which needs no library.
        let is_dynamic = image.dynamic().is_some() && kind(image) != Some(Kind::Static);
        if self.check(&path, image) && is_dynamic {
            self.libraries(&path, &mut objects);
        }
        self.objects.extend(objects.iter().cloned());
        if is_privileged(&path, image) {
            self.privileged.push((path, objects));
        }
    }

    /// Whether a file has all that it says. Records one that has not.
    fn check(&mut self, path: &Path, image: &Image<OnDisk>) -> bool {
        let length = image.raw().0.metadata().map_or(u64::MAX, |it| it.len());
        let reason = match Program::of_file(image.raw()) {
            Some(program) if program.length <= length => return true,
            Some(_) => "its segments lie beyond its end",
            None => "its program headers lie beyond its end",
        };
        self.not_loaded.push(NotLoaded {
            object: path.into(),
            reason: format!("the file is incomplete: {reason}"),
        });
        false
    }

    /// Collects the libraries of a program. The loader lists them without running any of its
    /// code.
    fn libraries(&mut self, program: &Path, objects: &mut BTreeSet<PathBuf>) {
        let listed = Command::new(LOADER).arg("--list").arg(program).output();
        let Ok(mut listed) = listed else { return };
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
            self.not_loaded.push(NotLoaded {
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
                objects.insert(library);
            }
        }
    }
}

/// Whether a program runs with more rights than its user (AT_SECURE): the redirector then
/// leaves it alone.
fn is_privileged(path: &Path, image: &Image<OnDisk>) -> bool {
    if !matches!(kind(image), Some(Kind::Dynamic | Kind::Static)) {
        return false;
    }
    let mode = fs::metadata(path).map_or(0, |it| it.permissions().mode());
    let mut capabilities = [0u8; 64];
    let given = rustix::fs::getxattr(path, CAPABILITIES, &mut capabilities[..]);
    mode & SET_ID != 0 || given.is_ok_and(|length| length > 0)
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

/// The object in a file; `None` if it is none of this machine's.
pub fn open(path: &Path) -> io::Result<Option<Image<OnDisk>>> {
    Ok(Image::of_file(OnDisk(File::open(path)?)))
}

/// What starts an object; `None` if its headers are not all there.
pub fn kind(image: &Image<OnDisk>) -> Option<Kind> {
    Some(Program::of_file(image.raw())?.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(folder: &Path, arguments: &[&str]) {
        let mut compiler = Command::new("cc");
        let status = compiler.current_dir(folder).args(arguments).status();
        assert!(status.expect("a C compiler").success(), "{arguments:?}");
    }

    /// Compiles a program without libraries of its own, with these options.
    fn plain_program(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
        fs::write(folder.join("plain.c"), "int main(void) { return 0; }").expect("it is written");
        compile(folder, &[options, &["-o", name, "plain.c"]].concat());
        folder.join(name)
    }

    #[test]
    fn programs_are_told_by_what_starts_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, options, expected) in [
            ("dynamic", &[][..], Kind::Dynamic),
            ("no-pie", &["-no-pie"], Kind::Dynamic),
            ("static", &["-static"], Kind::Static),
            ("static-pie", &["-static-pie"], Kind::Static),
            ("library", &["-shared", "-fPIC"], Kind::Other),
        ] {
            let path = plain_program(folder.path(), name, options);
            let image = open(&path).expect("it is read").expect("an object");
            assert_eq!(kind(&image), Some(expected), "{name}");
            let mut found = Found::default();
            collect(&path, &mut found).expect("a program");
            assert!(found.not_loaded.is_empty(), "{name}: {found:?}");
        }
    }

    #[test]
    fn programs_with_more_rights_are_named_with_their_libraries() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = plain_program(folder.path(), "program", &[]);
        for (mode, expected) in [(0o755, 0), (0o4755, 1), (0o2755, 1)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is owned");
            let (mut alone, mut in_folder) = (Found::default(), Found::default());
            collect(&path, &mut alone).expect("a program");
            collect(folder.path(), &mut in_folder).expect("a folder");
            assert_eq!(alone.privileged.len(), expected, "{mode:o}");
            assert_eq!(in_folder.privileged.len(), expected, "{mode:o}");
            if let Some((_, objects)) = alone.privileged.first() {
                assert!(objects.len() > 1, "the C library belongs to it: {alone:?}");
            }
        }
    }

    #[test]
    fn incomplete_programs_cannot_be_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = plain_program(folder.path(), "program", &[]);
        let bytes = fs::read(&path).expect("it is there");
        for length in [64, 100, 5000] {
            fs::write(&path, &bytes[..length]).expect("it is written");
            for given in [path.as_path(), folder.path()] {
                let mut found = Found::default();
                collect(given, &mut found).expect("it is read");
                let reasons: Vec<_> = found.not_loaded.iter().map(|it| &it.reason).collect();
                assert!(
                    matches!(reasons.as_slice(), [one] if one.contains("incomplete")),
                    "{length}: {reasons:?}"
                );
            }
        }
    }

    #[test]
    fn folders_follow_links_to_files_and_say_what_cannot_be_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let elsewhere = tempfile::tempdir().expect("a folder");
        let program = plain_program(elsewhere.path(), "program", &[]);
        let program = fs::canonicalize(program).expect("it is there");
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, folder.path().join(name)).expect("a link");
        };
        link(&program, "linked");
        link(Path::new("nowhere"), "dangling");
        link(folder.path(), "around");
        let mut found = Found::default();
        found.folder(&folder.path().join("missing"));
        collect(folder.path(), &mut found).expect("a folder");
        assert_eq!(found.objects, BTreeSet::from([program]));
        let unread: Vec<_> = found.unread.iter().map(|it| it.path.as_path()).collect();
        assert_eq!(unread, [folder.path().join("missing")]);
    }

    /// Compiles a C program and a library that it needs, which is missing if `missing`.
    fn program(folder: &Path, missing: bool) -> PathBuf {
        let compile = |arguments: &[&str]| compile(folder, arguments);
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
