//! Every flaw of a file is detected and distinguished.

use super::*;

/// Gives an edited text a valid hash again.
fn rehashed(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    let place = 19..83;
    text[place.clone()].fill(b'0');
    let hash = Digest::from_bytes(Sha256::digest(&text).into()).to_string();
    text[place].copy_from_slice(hash.as_bytes());
    text
}

#[tokio::test]
async fn every_flipped_bit_is_seen() {
    let portable = small().await;
    let text = portable.to_text();
    assert_eq!(Portable::from_text(&text).unwrap(), portable);

    for at in 0..text.len() {
        for bit in 0..8 {
            let mut spoilt = text.clone();
            spoilt[at] ^= 1 << bit;
            let flaw = Portable::from_text(&spoilt).expect_err("a bit was flipped");
            // A flipped digit of the format must not look like a newer version.
            assert!(matches!(flaw, Flaw::Digest { .. } | Flaw::Malformed(_)), "byte {at}, bit {bit}: {flaw}");
        }
    }
}

#[tokio::test]
async fn every_truncation_and_every_addition_is_seen() {
    let text = small().await.to_text();

    for length in 0..text.len() {
        assert!(Portable::from_text(&text[..length]).is_err(), "cut to {length} bytes");
    }
    for more in [&b"\n"[..], b" ", b"{}", b"\0"] {
        assert!(Portable::from_text(&[&text, more].concat()).is_err());
        assert!(Portable::from_text(&[more, &text].concat()).is_err());
    }
    assert!(Portable::from_text(&[text.clone(), text].concat()).is_err());
}

#[tokio::test]
async fn not_found_corrupt_and_incompatible_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let text = text_of(&small().await);
    let load = |name: &str, bytes: Option<&[u8]>| {
        let path = dir.path().join(name);
        bytes.into_iter().for_each(|bytes| fs::write(&path, bytes).unwrap());
        Portable::load(&path).unwrap_err()
    };

    let missing = load("missing.json", None);
    assert!(matches!(missing, LoadError::NotFound { .. }), "{missing:?}");
    assert!(missing.to_string().ends_with("missing.json"));
    assert!(matches!(Portable::load(&dir.path().join("no/folder")), Err(LoadError::NotFound { .. })));

    for (name, bytes) in [
        ("empty", &b""[..]),
        ("json", b"{}"),
        ("binary", &[0xFF; 200]),
        ("half", &text.as_bytes()[..text.len() / 2]),
        ("edited", text.replace("tea", "gin").as_bytes()),
    ] {
        let corrupt = load(name, Some(bytes));
        assert!(matches!(corrupt, LoadError::Corrupt { .. }), "{name}: {corrupt:?}");
        assert!(
            corrupt.to_string().contains(&format!("{name} is not a sound portable checkpoint: ")),
            "{corrupt}"
        );
    }

    let newer = rehashed(&text.replace("\"format\":4", "\"format\":99"));
    let incompatible = load("newer", Some(&newer));
    assert!(
        matches!(incompatible, LoadError::Incompatible { found: 99, supported: 4, .. }),
        "{incompatible:?}"
    );
    assert!(incompatible.to_string().ends_with("newer has format 99, this version reads up to 4"));
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_incompatible() {
    // Given a file of the current format around a record of a newer one.
    let portable = small().await;
    let text = text_of(&portable);
    let header = String::from_utf8(portable.checkpoint().header_bytes().to_vec()).unwrap();
    let newer = header.replacen("{\"v\":3", "{\"v\":4", 1);
    let digest = Digest::of(newer.as_bytes()).to_string();
    let text = text.replace(&header, &newer).replace(&portable.checkpoint().digest().to_string(), &digest);

    let refused = Portable::from_text(&rehashed(&text)).unwrap_err();

    assert_eq!(refused, Flaw::Format { found: 4, supported: 3 });
}

#[tokio::test]
async fn what_is_no_regular_file_is_neither_waited_for_nor_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let huge = dir.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(PORTABLE_BYTES_MAX + 1).unwrap();
    let sound = dir.path().join("sound.json");
    small().await.save(&sound, SaveMode::New).unwrap();
    let link = dir.path().join("newest.json");
    symlink("sound.json", &link).unwrap();

    assert!(matches!(Portable::load(&pipe), Err(LoadError::Io { .. })));
    assert!(matches!(Portable::load(dir.path()), Err(LoadError::Io { .. })));
    assert!(matches!(Portable::load(&huge), Err(LoadError::Corrupt { flaw: Flaw::Limit(_), .. })));
    assert_eq!(Portable::load(&link).unwrap(), small().await);
}

#[tokio::test]
async fn parts_that_do_not_belong_together_are_refused() {
    // A hash covers the bytes, not their author.
    let text = text_of(&small().await);
    let refused = |text: String| Portable::from_text(&rehashed(&text)).unwrap_err().to_string();
    let history = {
        let begin = text.find("\"history\":[").unwrap() + 11;
        text[begin..text.find("],\n\"children\"").unwrap()].to_owned()
    };
    let mut foreign = Links::of(&run_id("r-2"));
    let foreign = foreign.record(&scope("each:a"));
    let mut own = Links::of(&run_id("r-1"));
    let (main, bare) = (own.record(&main_scope()), own.seal_bare(own.header(&scope("each:a"))));
    let child = |record: &Record, body: bool| {
        let header = String::from_utf8(record.header_bytes().to_vec()).unwrap();
        let body = if body {
            format!(",\"position\":{{}},\"state\":{}", String::from_utf8_lossy(record.state_bytes().unwrap()))
        } else {
            String::new()
        };
        let child =
            format!("\"children\":[{{\"digest\":\"{}\",\"header\":{header}{body}}}]", record.digest());
        refused(text.replace("\"children\":[]", &child))
    };

    assert_eq!(
        refused(text.replace(&history, "")),
        "cannot be read: missing header r-1@1, referenced by a position"
    );
    assert_eq!(
        refused(text.replace(&history, &format!("{history},{history}"))),
        "cannot be read: the history does not lead to r-1@2"
    );
    assert_eq!(
        refused(text.replace("\"portable_checkpoint\":\"r-1@2\"", "\"portable_checkpoint\":\"r-1@9\"")),
        "cannot be read: the header belongs to r-1@9"
    );
    assert_eq!(child(&foreign, true), "cannot be read: checkpoint r-2/each:a@1 belongs to another run");
    assert_eq!(
        child(&main, true),
        "cannot be read: checkpoint r-1@1 is not a child of the exported checkpoint"
    );
    assert_eq!(
        child(&bare, false),
        "cannot be read: checkpoint r-1/each:a@1 is not a child of the exported checkpoint"
    );
    assert_eq!(
        refused(text.replace("\"blobs\":{}", "\"blobs\":{\"../up\":{\"lines\":[1]}}")),
        "cannot be read: `../up` is not the name of a blob"
    );
    assert!(
        refused(text.replace("\"topic\":\"tea\"", "\"topic\":\"gin\"")).contains("run record has digest")
    );
    assert!(refused(text.replace("\"seq\":2,\"float\"", "\"seq\":3,\"float\"")).contains("body has digest"));
}
