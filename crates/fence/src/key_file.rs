//! Signing keys in a file: one in base64 on each line, the first one signs, all of them verify.
//!
//! ```console
//! $ (umask 077; head -c 32 /dev/urandom | base64 > signing.key)
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::{Keyring, NotAKeyring, SigningKey};

/// No file of keys is longer: a path typed by mistake is not read into memory.
const MAX_FILE_BYTES: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("the signing key {} cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the signing key {} is not a file", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "the signing key {} can be read by others (mode {mode:04o}): make it yours alone with chmod 600",
        path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the signing key {} is longer than {MAX_FILE_BYTES} bytes", path.display())]
    TooLong { path: PathBuf },
    #[error("line {line} of the signing key {} is not base64", path.display())]
    NotBase64 { path: PathBuf, line: usize },
    #[error("line {line} of the signing key {}: {source}", path.display())]
    Weak { path: PathBuf, line: usize, source: NotAKeyring },
    #[error("the signing key {}: {source}", path.display())]
    Keyring { path: PathBuf, source: NotAKeyring },
}

/// Reads the keys. Lines that are empty or begin with `#` do not count.
pub fn read_keyring(path: &Path) -> Result<Keyring, KeyFileError> {
    let text = read(path)?;
    let owned = || path.to_path_buf();
    let mut keys = Vec::new();
    for (position, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line_number = position + 1;
        let secret = STANDARD.decode(line).map_err(|_| KeyFileError::NotBase64 { path: owned(), line: line_number })?;
        let key = SigningKey::new(&secret);
        keys.push(key.map_err(|source| KeyFileError::Weak { path: owned(), line: line_number, source })?);
    }
    Keyring::new(keys).map_err(|source| KeyFileError::Keyring { path: owned(), source })
}

fn read(path: &Path) -> Result<String, KeyFileError> {
    let owned = || path.to_path_buf();
    let failed = |source| KeyFileError::Io { path: owned(), source };
    // Looked at before it is opened: opening a pipe would wait for somebody to write into it.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(KeyFileError::NotAFile { path: owned() });
    }
    let file = File::open(path).map_err(failed)?;
    // Of the file that was opened, not of the name.
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Exposed { path: owned(), mode });
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(KeyFileError::TooLong { path: owned() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, Key, NEVER_MS, Token};
    use std::fs;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_key_signs_and_all_verify() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("key");
        let (old, new) = (STANDARD.encode([1; 32]), STANDARD.encode([2; 48]));
        write(&path, &format!("# new\n{new}\n\n  {old}  \n"), 0o600);
        let ring = read_keyring(&path).unwrap();
        let claim = Claim::new("c", Key::name("a").unwrap(), Token::LOWEST, "h", NEVER_MS).unwrap();
        for secret in [&[1_u8; 32][..], &[2; 48]] {
            let signer = Keyring::new(vec![SigningKey::new(secret).unwrap()]).unwrap();
            assert!(ring.open(&signer.sign(&claim)).is_ok());
            assert_eq!(signer.open(&ring.sign(&claim)).is_ok(), secret.len() == 48);
        }
    }

    #[test]
    fn keys_that_are_weak_exposed_or_none_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("key");
        let good = STANDARD.encode([1; 32]);
        let error = |text: &str, mode| {
            write(&path, text, mode);
            read_keyring(&path).unwrap_err()
        };
        for mode in [0o640, 0o604, 0o660, 0o700 | 0o001] {
            assert!(matches!(error(&good, mode), KeyFileError::Exposed { .. }), "{mode:o}");
        }
        assert!(matches!(error("", 0o600), KeyFileError::Keyring { source: NotAKeyring::Empty, .. }));
        assert!(matches!(error(&STANDARD.encode([1; 31]), 0o600), KeyFileError::Weak { line: 1, .. }));
        assert!(matches!(error(&format!("{good}\nsecret!\n"), 0o600), KeyFileError::NotBase64 { line: 2, .. }));
        assert!(matches!(error(&"#".repeat(70 << 10), 0o600), KeyFileError::TooLong { .. }));
        assert!(matches!(read_keyring(home.path()).unwrap_err(), KeyFileError::NotAFile { .. }));
        assert!(matches!(read_keyring(&home.path().join("none")).unwrap_err(), KeyFileError::Io { .. }));
        let said = error("secret!", 0o600).to_string();
        assert!(!said.contains("secret!"), "a key is never shown: {said}");
    }
}
