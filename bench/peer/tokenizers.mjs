// The same as bench/tokenizer_bench.cpp with Hugging Face's Rust library, on one thread. In a folder
// where `npm install tokenizers@0.23.2` was run:
//   RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false node tokenizers.mjs TOKENIZER... -- TEXT_FILE...
import fs from "node:fs";
import {createRequire} from "node:module";

const {Tokenizer} = createRequire(process.cwd() + "/")("tokenizers");
const words = process.argv.slice(2), cut = words.indexOf("--");
for (const file of words.slice(0, cut)) {
  for (const text of words.slice(cut + 1)) {
    const path = fs.statSync(file).isDirectory() ? file + "/tokenizer.json" : file;
    const tokenizer = Tokenizer.fromFile(path);
    const all = fs.readFileSync(text), parts = [];
    for (let at = 0; at < all.length;) {
      const line = all.indexOf(10, Math.min(at + 4096, all.length));
      const end = line < 0 ? all.length : line + 1;
      parts.push(all.subarray(at, end).toString("utf8"));
      at = end;
    }
    const megabytes = all.length / 1e6;
    let tokens = 0, ids = [];
    const best = async work => {
      await work();
      let least = Infinity, total = 0;
      for (let runs = 0; runs < 3 || total < 2; ++runs) {
        const start = process.hrtime.bigint();
        await work();
        const seconds = Number(process.hrtime.bigint() - start) / 1e9;
        least = Math.min(least, seconds);
        total += seconds;
      }
      return least;
    };
    const encode = await best(async () => {
      tokens = 0;
      ids = [];
      for (const part of parts) {
        const encoding = await tokenizer.encode(part, null, {addSpecialTokens: false});
        tokens += encoding.getLength();
        ids.push(encoding);
      }
    });
    ids = ids.map(encoding => encoding.getIds());
    const decode = await best(async () => { for (const row of ids) await tokenizer.decode(row, true); });
    console.log(JSON.stringify({tokenizer: file, text, megabytes, tokens, encode_mb_per_s: megabytes / encode,
                                decode_mb_per_s: megabytes / decode}));
  }
}
