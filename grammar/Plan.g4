// The plan language. Reference: docs/language.md. White space separates tokens and nothing more;
// the one exception is a unit, which stands on its number's line. Each rule has an example.
// Rule and token names never reach the user: frontend/parse.cpp words the errors.
grammar Plan;

@parser::members {
  // Whether the next token is the unit of the number before it: a word on its line that does not
  // begin the next entry. So `lr 3e-4 warmup 100` and lines of a plan need no separator.
  bool isUnit() {
    antlr4::Token* number = _input->LT(-1);
    antlr4::Token* word = _input->LT(1);
    return number != nullptr && number->getLine() == word->getLine() && word->getType() == IDENT &&
           word->getText() != "compute" && _input->LA(2) != NUMBER;
  }
}

// A whole file.
file : item* EOF ;

item : importItem | device | cluster | module | plan ;

importItem : 'import' STRING ;                                  // import "std/transformer.plan"

// device h100 { memory 80 GiB  compute bf16 989 TFLOP/s, f32 67 TFLOP/s }
device : 'device' ident '{' (deviceEntry ','?)* '}' ;
deviceEntry : ident elementRate (',' elementRate)*              // compute bf16 989 TFLOP/s, f32 ...
            | ident quantity                                    // memory 80 GiB
            ;
elementRate : ident quantity ;

// cluster pod { node 8 of h100 { link 450 GB/s, latency 1 us } }
cluster : 'cluster' ident '{' level* '}' ;
level : ident quantity 'of' ident ('{' (levelEntry ','?)* '}')? ;
levelEntry : ident quantity ;

// module mlp(x[batch, seq, model], scale = 4) { ... }    model gpt2(layers = 12) { ... }
module : ('module' | 'model') ident ('(' (param (',' param)*)? ')')? block ;
param : 'dim' ident ('=' ident)?                                // dim hidden = ffn
      | ident '[' (ident (',' ident)*)? ']'                     // x[batch, seq, model]
      | ident ('=' expr)?                                       // top = 2
      ;

block : '{' statement* '}' ;
statement : dimStatement | inputStatement | weightStatement | repeatStatement | ifStatement
          | lossStatement | returnStatement | assignStatement ;

dimStatement : 'dim' dimItem (',' dimItem)* ;                   // dim head = 8, kv = 4
dimItem : ident '=' expr ;
// input tokens[batch, seq] : token(vocab)     input documents[batch, seq] : document(tokens, 10)
inputStatement : 'input' ident '[' (ident (',' ident)*)? ']' ':'
                 ('token' '(' ident ')' | 'document' '(' ident ',' expr ')') ;
// weight gate, up [model, ffn] init normal(0.02) no decay
weightStatement : 'weight' ident (',' ident)* '[' dimList? ']' initClause?
                  (decayClause | balancedClause)? ;
dimList : ident (',' ident)* ;
initClause : 'init' ident ('(' expr ')')? ;
decayClause : 'no'? 'decay' ;
balancedClause : 'balanced' '(' expr ')' ;                      // weight bias [expert] init zeros balanced(0.001)
repeatStatement : 'repeat' ident '=' expr block ;               // repeat layer = layers { ... }
// if tied { ... } else { ... }
ifStatement : 'if' condition block ('else' 'if' condition block)* ('else' block)? ;
condition : expr (('==' | '!=' | '<' | '<=' | '>' | '>=') expr)? ;
lossStatement : 'loss' expr ;                                   // loss cross_entropy(logits, targets)
returnStatement : 'return' (assignName dims? '=')? expr ;       // return y[batch, seq, model] = ...
assignStatement : assignName dims? '=' expr ;                   // x[batch, seq, model] = table[tokens]
dims : '[' dimList? ']' ;

expr : term (('+' | '-') term)* ;
term : factor (('*' | '/' | '@') factor)* ;
factor : '-' factor | primary ;
primary : NUMBER
        | '(' expr ')'
        | ident '(' (arg (',' arg)*)? ')'                       // route(s, top = 2)
        | ident '[' expr ']'                                    // table[tokens]
        | ident
        ;
arg : (ident '=')? expr ;

// plan train of moe_lm(layers = 8) on pod { ... }
plan : 'plan' ident 'of' ident ('(' (arg (',' arg)*)? ')')? ('on' ident)? '{' planStatement* '}' ;
planStatement : grid | split | shard | place | microbatches | precision | recompute | optimizer
              | seed ;

grid : 'grid' ('auto' | axis (',' axis)*) ;                     // grid data 2, tensor 8
axis : ident quantity ;
split : 'split' ident (',' ident)* 'over' target (',' target)* ;
// context by ring(zigzag) within node     pipe by one_f_one_b stages 9 10 10 9     heads across
target : ident ('by' method scope?)? ('stages' quantity+)?
       | method scope
       ;
// gather     ring(zigzag)     schedule("my.schedule")
method : ident ('(' (STRING | (expr (',' expr)*)?) ')')? ;
scope : 'within' ident | 'across' ;
shard : 'shard' ident (',' ident)* 'over' ident (',' ident)* ;  // shard optimizer over data
place : 'place' ident (',' ident)* 'within' ident ;             // place tensor within node
microbatches : 'microbatches' ('auto' | quantity) ;
precision : 'precision' ident ('{' (precisionEntry ','?)* '}')? ;
precisionEntry : ident ident ;                                  // master f32
recompute : 'recompute' ident (',' ident)* ;                    // recompute attend
optimizer : 'optimizer' ident ('{' (optimizerEntry ','?)* '}')? ;
optimizerEntry : ident quantity+ ;                              // betas 0.9 0.95
seed : 'seed' quantity ;

quantity : '-'? NUMBER ({isUnit()}? IDENT ('/' IDENT)?)? ;      // 450 GB/s

// Most keywords are names too. Reserved are only import, device, cluster, module, plan, dim, input,
// weight, repeat, if, else and return.
ident : IDENT | 'model' | word ;
assignName : IDENT | word ;  // without 'model': a missing `}` shows at the next model
word : 'of' | 'on' | 'token' | 'document' | 'init' | 'no' | 'decay' | 'balanced' | 'loss' | 'grid' | 'auto' | 'split' | 'over'
     | 'by' | 'stages' | 'within' | 'across' | 'shard' | 'place' | 'microbatches' | 'precision'
     | 'recompute' | 'optimizer' | 'seed' ;

NUMBER : [0-9]+ ('.' [0-9]+)? ([eE] [+-]? [0-9]+)? ;
IDENT : [A-Za-z_] [A-Za-z_0-9]* ;
STRING : '"' ~["\r\n]* '"' ;

LINE_COMMENT : '//' ~[\r\n]* -> channel(HIDDEN) ;
BLOCK_COMMENT : '/*' .*? '*/' -> channel(HIDDEN) ;
SPACE : [ \t\r\n]+ -> skip ;

// What is left is wrong; parse.cpp says how.
OPEN_STRING : '"' ~["\r\n]* ;
OPEN_COMMENT : '/*' ;
OTHER : . ;
