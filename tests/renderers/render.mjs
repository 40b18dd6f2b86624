// A report a line on stdin: {id, markdown}. What each renderer makes of its links, a line on
// stdout: {id, found: [[renderer, attribute, raw value, [resolved against each base]], ...]}.
import { createInterface } from "node:readline";
import markdownIt from "markdown-it";
import markdownIt14 from "markdown-it-14";
import footnote from "markdown-it-footnote";
import { Marked } from "marked";
import rehypeRaw from "rehype-raw";
import rehypeStringify from "rehype-stringify";
import remarkGfm from "remark-gfm";
import remarkParse from "remark-parse";
import remarkRehype from "remark-rehype";
import { unified } from "unified";
import { inHtml } from "./addresses.mjs";

const marked = new Marked({ gfm: true });
const linkifying = { html: true, linkify: true };
const newest = markdownIt(linkifying).use(footnote);
newest.linkify.set({ fuzzyLink: true }); // `www.a.com` and `a.com`, which was the default up to 14
const usual = markdownIt14(linkifying).use(footnote);
const remark = unified().use(remarkParse).use(remarkGfm).freeze();
const withHtml = unified()
  .use(remarkRehype, { allowDangerousHtml: true })
  .use(rehypeRaw)
  .use(rehypeStringify)
  .freeze();
const withoutHtml = unified().use(remarkRehype).use(rehypeStringify).freeze();

// Both kinds of remark read one tree: parsing is most of the work, and neither changes it.
let tree;
const renderers = {
  marked: (markdown) => marked.parse(markdown),
  "markdown-it": (markdown) => newest.render(markdown),
  "markdown-it 14": (markdown) => usual.render(markdown),
  remark: (markdown) => withHtml.stringify(withHtml.runSync((tree = remark.parse(markdown)))),
  "remark without HTML": () => withoutHtml.stringify(withoutHtml.runSync(tree)),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, markdown } = JSON.parse(line);
  const found = [];
  for (const [renderer, render] of Object.entries(renderers)) {
    try {
      for (const address of inHtml(render(markdown))) found.push([renderer, ...address]);
    } catch (error) {
      found.push([renderer, "cannot render", String(error.message), [null]]);
    }
  }
  console.log(JSON.stringify({ id, found }));
}
