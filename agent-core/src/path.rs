//! The canonical form of HTTP paths: the one that policy is held against and that is forwarded, so that nobody reads the
//! same request in two ways. Owns no matching.
//!
//! - `%41` (an unreserved character) is decoded, other escapes keep their meaning and get upper-case digits;
//! - empty and `.` segments go, `..` takes the segment before it (RFC 3986, 5.2.4), also as `%2e%2e`;
//! - `%2F` stays as it is and never separates segments (scoped npm packages);
//! - what upstreams are known to read differently is refused: `..` behind `%2F`, `%5C`, `\` or before `;`, encoded NUL,
//!   raw control characters, spaces and backslashes, half escapes, `..` above the root.

use std::borrow::Cow;

/// Why a path is refused; the request gets 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Neither `/…` nor `*`.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    /// `%` without two hexadecimal digits.
    #[error("the path holds a `%` without two hexadecimal digits")]
    HalfEscape,
    /// A character that has no place in a path, raw or as `%00`.
    #[error("the path holds a control character, a space or a backslash")]
    ForbiddenCharacter,
    /// A `..` that some servers see and others do not.
    #[error("the path hides `..` behind an escaped separator or a path parameter")]
    HiddenDotSegment,
    /// More `..` than segments.
    #[error("the path climbs above the root")]
    AboveRoot,
}

/// Gives the canonical form of a request target's path; the query must have been split off.
///
/// `*` (of `OPTIONS *`) is canonical as it stands. Borrows when nothing had to change, which is the usual case.
///
/// # Errors
/// Paths that two servers could read in two ways.
pub fn canonicalise(raw: &str) -> Result<Cow<'_, str>, PathError> {
    if is_canonical(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    if !raw.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    let decoded = decode(raw)?;
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in decoded.split('/') {
        ends_in_directory = false;
        match segment {
            "" | "." => ends_in_directory = true,
            ".." => {
                segments.pop().ok_or(PathError::AboveRoot)?;
                ends_in_directory = true;
            }
            _ if hides_dot_segment(segment) => return Err(PathError::HiddenDotSegment),
            _ => segments.push(segment),
        }
    }
    let mut canonical = String::with_capacity(decoded.len());
    for segment in &segments {
        canonical.push('/');
        canonical.push_str(segment);
    }
    if ends_in_directory || segments.is_empty() {
        canonical.push('/');
    }
    Ok(Cow::Owned(canonical))
}

/// True when [`canonicalise`] would give the same text back. Costs one pass.
pub fn is_canonical(path: &str) -> bool {
    if path == "*" {
        return true;
    }
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return false;
    }
    let mut may_hide_dots = false;
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'/' => match bytes.get(i + 1) {
                Some(b'/') => return false,
                Some(b'.') => may_hide_dots = true,
                _ => {}
            },
            b'%' => {
                let (Some(&high), Some(&low)) = (bytes.get(i + 1), bytes.get(i + 2)) else {
                    return false;
                };
                let is_upper_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'A'..=b'F');
                if !is_upper_hex(high) || !is_upper_hex(low) {
                    return false;
                }
                let value = hex(high) << 4 | hex(low);
                if value == 0 || is_unreserved(value) {
                    return false;
                }
                may_hide_dots |= matches!(value, b'/' | b'\\');
                i += 2;
            }
            _ if !is_path_byte(byte) => return false,
            _ => {}
        }
        i += 1;
    }
    !may_hide_dots || !path.split('/').any(hides_dot_segment)
}

/// True when the segment is `.` or `..`, or a server that decodes `%2F` or `%5C`, or cuts path parameters off, would
/// find one in it. The escapes' digits must be upper case.
fn hides_dot_segment(segment: &str) -> bool {
    let is_dots = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    if segment.contains('%') {
        segment
            .replace("%2F", "/")
            .replace("%5C", "/")
            .split('/')
            .any(is_dots)
    } else {
        is_dots(segment)
    }
}

/// Decodes unreserved characters, encodes what has no place in a path, and makes escapes' digits upper case.
fn decode(raw: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let (Some(high), Some(low)) = (bytes.next(), bytes.next()) else {
                    return Err(PathError::HalfEscape);
                };
                if !high.is_ascii_hexdigit() || !low.is_ascii_hexdigit() {
                    return Err(PathError::HalfEscape);
                }
                match hex(high) << 4 | hex(low) {
                    0 => return Err(PathError::ForbiddenCharacter),
                    value if is_unreserved(value) => out.push(char::from(value)),
                    value => push_escape(&mut out, value),
                }
            }
            b'\\' | b' ' => return Err(PathError::ForbiddenCharacter),
            _ if byte.is_ascii_control() => return Err(PathError::ForbiddenCharacter),
            _ if byte == b'/' || is_path_byte(byte) => out.push(char::from(byte)),
            _ => push_escape(&mut out, byte),
        }
    }
    Ok(out)
}

fn push_escape(out: &mut String, value: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(value >> 4)]));
    out.push(char::from(DIGITS[usize::from(value & 15)]));
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

/// RFC 3986, 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// RFC 3986, 3.3: `pchar` without escapes.
fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'!' | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

/// The form in which rules and requests are compared: escapes of characters that mean the same either way in a path
/// (`%2B` and `+`) are decoded. Separators (`%2F`, `%5C`, `%3B`), `%25`, `%3F`, `%23` and all else stay escaped.
pub(crate) fn comparable(canonical: &str) -> Cow<'_, str> {
    if !canonical.contains('%') {
        return Cow::Borrowed(canonical);
    }
    let bytes = canonical.as_bytes();
    let mut out = String::with_capacity(canonical.len());
    let (mut i, mut copied) = (0, 0);
    while i < bytes.len() {
        if bytes[i] == b'%'
            && let (Some(&high), Some(&low)) = (bytes.get(i + 1), bytes.get(i + 2))
            && high.is_ascii_hexdigit()
            && low.is_ascii_hexdigit()
        {
            let value = hex(high) << 4 | hex(low);
            if value != b';' && is_path_byte(value) {
                out.push_str(&canonical[copied..i]);
                out.push(char::from(value));
                copied = i + 3;
            }
            i += 3;
        } else {
            i += 1;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(canonical);
    }
    out.push_str(&canonical[copied..]);
    Cow::Owned(out)
}

/// The path as a server sees it that cuts path parameters off (`/a;x=1/b` is `/a/b`); `None` when there are none.
pub(crate) fn without_parameters(path: &str) -> Option<String> {
    if !path.contains(';') {
        return None;
    }
    let cut: Vec<&str> = path
        .split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .collect();
    Some(cut.join("/"))
}

#[cfg(test)]
mod tests;
