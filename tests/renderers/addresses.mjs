// Find every address that a browser could follow or load from a page, using a real HTML parser.
import { parseFragment } from "parse5";

const BASES = ["https://base.example/dir/page", "http://other-base.example/"];
const SINGLE_URL = new Set([
  "action", "background", "cite", "classid", "code", "codebase", "data", "dynsrc", "formaction",
  "href", "icon", "longdesc", "lowsrc", "manifest", "poster", "profile", "src", "usemap",
]);
const URL_LISTS = new Set(["archive", "attributionsrc", "ping"]);
const SRCSETS = new Set(["srcset", "imagesrcset"]);
const ANIMATED = new Set(["by", "from", "to", "values"]);
const CSS_URL = /url\(\s*(?:"([^"]*)"|'([^']*)'|([^)]*))\s*\)?|@import\s+(?:"([^"]*)"|'([^']*)')/gi;

const resolve = (value) => {
  const urls = BASES.map((base) => (URL.canParse(value, base) ? new URL(value, base).href : null));
  return urls.includes(null) ? [null] : urls;
};

// Handles CSS escapes such as \75rl( and comments between the letters as a browser does.
const inCss = (css) => {
  const unescaped = css
    .replace(/\/\*[^]*?(?:\*\/|$)/g, "")
    .replace(/\\(?:([0-9a-f]{1,6})\s?|([^\n]))/gi, (_, code, letter) =>
      code ? String.fromCodePoint(Math.min(parseInt(code, 16), 0x10ffff)) : letter,
    );
  return [...unescaped.matchAll(CSS_URL)].map((match) => match.slice(1).find((part) => part !== undefined));
};

const inAttribute = (element, name, value) => {
  if (SINGLE_URL.has(name)) return [value];
  if (URL_LISTS.has(name)) return value.split(/[\s,]+/).filter(Boolean);
  if (SRCSETS.has(name)) {
    return value.split(/,\s|,$|\s,/).map((part) => part.trim().split(/\s+/)[0].replace(/^,+/, "")).filter(Boolean);
  }
  if (name === "content" && element.attrs.some((other) => /^refresh$/i.test(other.value.trim()))) {
    const match = /[;,\s]\s*(?:url\s*=\s*)?["']?\s*([^"'\s;,][^"']*)/i.exec(value);
    return match ? [match[1]] : [];
  }
  if (ANIMATED.has(name) && element.attrs.some((other) => /href$/i.test(other.value))) return value.split(";");
  return /url\(|@import|\\/i.test(value) ? inCss(value) : [];
};

function* inElement(element) {
  for (const { name: rawName, prefix, value } of element.attrs) {
    const name = prefix ? `${prefix}:${rawName}` : rawName;
    const local = name.replace(/^.*:/, "");
    if (local.startsWith("on")) yield [name, value, [null]];
    else if (local === "srcdoc") yield* inHtml(value);
    else for (const address of inAttribute(element, local, value)) yield [name, address, resolve(address)];
  }
  if (element.tagName !== "style" && element.tagName !== "script") return;
  const text = element.childNodes.map((child) => child.value ?? "").join("");
  if (element.tagName === "script") yield ["<script>", text, [null]];
  else for (const address of inCss(text)) yield ["<style>", address, resolve(address)];
}

function* inTree(root) {
  const pending = [root];
  while (pending.length) {
    const node = pending.pop();
    if (node.attrs) yield* inElement(node);
    if (node.content) pending.push(node.content);
    if (node.childNodes) pending.push(...node.childNodes);
  }
}

/** Yield [attribute, raw value, [resolved against each base]] of each address, except fragments. */
export function* inHtml(html) {
  // The content of <noscript> is text if scripting is enabled, and elements if it is not.
  for (const scriptingEnabled of /<noscript/i.test(html) ? [false, true] : [true]) {
    for (const link of inTree(parseFragment(html, { scriptingEnabled }))) {
      if (!link[1].startsWith("#") || link[2][0] === null) yield link;
    }
  }
}
