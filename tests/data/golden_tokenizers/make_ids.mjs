// Ids, places and texts of the tokenizers in this folder, by Hugging Face's own library. Where
// `npm install tokenizers@0.23.2` was run:
//   node FOLDER/make_ids.mjs
import fs from "node:fs";
import path from "node:path";
import {createRequire} from "node:module";
import {fileURLToPath} from "node:url";

const {Tokenizer} = createRequire(process.cwd() + "/")("tokenizers");
const folder = path.dirname(fileURLToPath(import.meta.url));
const lines = name => fs.readFileSync(path.join(folder, name), "utf8").trim().split("\n").map(JSON.parse);
fs.mkdirSync(path.join(folder, "ids"), {recursive: true});
for (const name of fs.readdirSync(folder)) {
  if (!fs.existsSync(path.join(folder, name, "tokenizer.json"))) continue;
  const tokenizer = Tokenizer.fromFile(path.join(folder, name, "tokenizer.json"));
  const encode = async (text, full) => {
    const encoding = await tokenizer.encode(text, null, {addSpecialTokens: false});
    const record = {ids: encoding.getIds(), spans: encoding.getOffsets()};
    if (!full) return record;
    const decode = skip => record.ids.length ? tokenizer.decode(record.ids, skip) : "";
    const decoded = await decode(true), special = await decode(false);
    if (decoded !== text) record.decoded = decoded;
    if (special !== decoded) record.decoded_with_special = special;
    return record;
  };
  for (const [source, prefix, full] of [["texts.jsonl", "", true], ["invalid_utf8.jsonl", "invalid_", false]]) {
    let out = "";
    for (const {n, text} of lines(source)) out += JSON.stringify({n, ...await encode(text, full)}) + "\n";
    fs.writeFileSync(path.join(folder, "ids", prefix + name + ".jsonl"), out);
  }
}
