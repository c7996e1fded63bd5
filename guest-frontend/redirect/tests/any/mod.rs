//! Any bytes, as an object, as facts and as a configuration; shared with the fuzz target.

use paragpu_redirect::facts::{Facts, TEXT};
use paragpu_redirect::image::Image;
use paragpu_redirect::program::Program;
use paragpu_redirect::symbols::{Table, shared, shared_entries};
use paragpu_redirect::{find, switch, texts};

/// Looks everywhere in `data`; returns, whatever it is.
pub fn any_bytes(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Facts::parse(text);
    }
    let _ = switch::configured(data);
    let _ = Program::of_file(&data);
    let Some(image) = Image::of_file(data) else {
        return;
    };
    let facts = Facts::parse(TEXT).expect("the facts compiled in");
    let _ = image.build_id();
    find::search(&image, facts.builds(), |_| {});
    texts::search(&image, &facts, |_| {});
    find::may_carry(&image);
    if let Some(dynamic) = image.dynamic() {
        shared(&image, &dynamic);
        shared_entries(&image, &dynamic, |_| {});
    }
    if let Some(table) = Table::of_file(&data)
        && let Some(named) = table.runtime(&image, &facts)
    {
        named.entries(&image, |_| {});
    }
}
