export npm_config_offline=true npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false

setup() {
    mkdir -p app packages/alpha packages/beta/bin
    printf '{"name":"alpha","version":"1.0.0","main":"index.js","dependencies":{}}' > packages/alpha/package.json
    echo 'module.exports = () => "alpha"' > packages/alpha/index.js
    printf '{"name":"beta","version":"2.0.0","main":"index.js","bin":{"beta":"bin/beta.js"}}' \
        > packages/beta/package.json
    echo 'module.exports = () => "beta"' > packages/beta/index.js
    printf '#!/usr/bin/env node\nconsole.log("bin of beta")\n' > packages/beta/bin/beta.js
    chmod +x packages/beta/bin/beta.js
    (cd packages && tar -czf alpha.tgz --transform 's,^alpha,package,' alpha \
        && tar -czf beta.tgz --transform 's,^beta,package,' beta)
    cat > app/package.json <<'JSON'
{"name":"app","version":"1.0.0","scripts":{"start":"node index.js"},
 "dependencies":{"alpha":"file:../packages/alpha.tgz","beta":"file:../packages/beta.tgz"}}
JSON
    echo 'console.log(require("alpha")(), require("beta")())' > app/index.js
}

work() {
    cd app
    npm install --silent
    test "$(npm start --silent)" = 'alpha beta'
    test "$(./node_modules/.bin/beta)" = 'bin of beta'
}

check() {
    cd app
    test "$(npm start --silent)" = 'alpha beta'
    test "$(./node_modules/.bin/beta)" = 'bin of beta'
}
