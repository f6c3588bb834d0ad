//! Pseudo-terminals, and what a person sees on them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::rig::{Rig, wait_until};

/// A terminal with a person in front of it.
pub(crate) struct Terminal {
    /// The person's end.
    keys: File,
    /// The end of the programs.
    ours: OwnedFd,
    columns: usize,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn new(columns: u16, rows: u16) -> Self {
        let (terminal, ours) = pair();
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&ours, size).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut terminal) = (Arc::clone(&shown), File::from(terminal));
        let keys = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that the last program closed its end.
            while let Ok(count @ 1..) = terminal.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { keys, ours, columns: usize::from(columns), shown }
    }

    /// Makes a call of the program on this terminal.
    pub(crate) fn command(&self, rig: &Rig, args: &[&str]) -> Command {
        let mut command = rig.command(args);
        let end = || self.ours.try_clone().unwrap();
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        command
    }

    /// Types text; `\n` is the return key, `\x04` the end of input.
    pub(crate) fn type_keys(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen shows some words.
    pub(crate) fn wait_for(&self, words: &str) {
        let last = std::cell::RefCell::new(String::new());
        wait_until(&format!("`{words}` on the terminal"), || {
            *last.borrow_mut() = self.screen();
            last.borrow().contains(words)
        });
    }

    /// Returns the lines of the screen and those scrolled away.
    pub(crate) fn screen(&self) -> String {
        screen(&String::from_utf8_lossy(&self.shown.lock().unwrap()), self.columns)
    }
}

/// Returns what a terminal of this width shows for these bytes: text, line ends, `\r`, cursor up, clear below.
/// Each character takes one column.
fn screen(bytes: &str, columns: usize) -> String {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut rest = bytes.chars();
    while let Some(c) = rest.next() {
        match c {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                let mut code = String::new();
                for c in rest.by_ref() {
                    code.push(c);
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
                match code.as_str() {
                    "[1A" => row = row.saturating_sub(1),
                    "[J" => {
                        lines.truncate(row + 1);
                        lines[row].truncate(column);
                    }
                    _ => {}
                }
            }
            c => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    let lines = lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the text shown on a terminal, with its line ends as written.
pub(crate) fn on_terminal(write: impl FnOnce(OwnedFd)) -> String {
    const END: &[u8] = b"\x04the end\x04";
    let (terminal, ours) = pair();
    let mut last = File::from(ours.try_clone().unwrap());
    let reader = std::thread::spawn(move || {
        let (mut shown, mut terminal) = (Vec::new(), File::from(terminal));
        let mut byte = [0];
        // Closing one end of a terminal may discard unread output.
        while !shown.ends_with(END) {
            terminal.read_exact(&mut byte).unwrap();
            shown.push(byte[0]);
        }
        shown.truncate(shown.len() - END.len());
        shown
    });
    write(ours);
    last.write_all(END).unwrap();
    // The terminal turns each line end into `\r\n`.
    String::from_utf8(reader.join().unwrap()).unwrap().replace("\r\n", "\n")
}

/// Makes a terminal. The first descriptor reads the bytes written to the second.
#[expect(
    unsafe_code,
    reason = "neither the standard library nor rustix, as it is used here, makes a terminal"
)]
fn pair() -> (OwnedFd, OwnedFd) {
    let (mut reads, mut writes) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: both out parameters point to live integers; the other pointers are null.
    let made = unsafe { libc::openpty(&raw mut reads, &raw mut writes, none, none.cast(), none.cast()) };
    assert_eq!(made, 0);
    // SAFETY: both descriptors were just made and have no other owner.
    unsafe { (OwnedFd::from_raw_fd(reads), OwnedFd::from_raw_fd(writes)) }
}
