// The client of the adapter contract: sign-in by a signed assertion, claims with their heartbeat, reports, tasks and
// correlation ids. It needs nothing but the standard library. What the app needs is in adapter.go.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const pollSeconds = 20

var api = strings.TrimSuffix(os.Getenv("MOORING_URL"), "/") + "/api/v1"
var holder = "adapter-" + unique()

type object = map[string]any

// Refusal is a response that is not a success, with the code of the platform's catalogue.
type Refusal struct {
	Status       int
	Code, Detail string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Detail) }

func unique() string {
	content := make([]byte, 16)
	_, _ = rand.Read(content) // it never fails on the platforms that adapters run on
	return fmt.Sprintf("%x", content)
}

func assertion(key ed25519.PrivateKey, kid, subject, path string) string {
	now := time.Now().Unix()
	claims := object{"iss": subject, "sub": subject, "aud": api + path, "iat": now, "exp": now + 120, "jti": unique()}
	head, _ := json.Marshal(object{"alg": "EdDSA", "typ": "JWT", "kid": kid})
	body, _ := json.Marshal(claims)
	signed := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(body)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

// send does one request; the body is a form (url.Values), or anything that becomes JSON.
func send(ctx context.Context, method, path string, headers map[string]string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, (pollSeconds+15)*time.Second)
	defer cancel()
	content, kind := []byte{}, "application/json"
	if form, is := body.(url.Values); is {
		content, kind = []byte(form.Encode()), "application/x-www-form-urlencoded"
	} else if body != nil {
		content, _ = json.Marshal(body)
	}
	request, err := http.NewRequestWithContext(ctx, method, api+path, strings.NewReader(string(content)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode < 300 {
		return json.NewDecoder(response.Body).Decode(answer)
	}
	refusal := &Refusal{}
	_ = json.NewDecoder(response.Body).Decode(refusal) // the status is enough where there is no problem document
	refusal.Status = response.StatusCode
	return refusal
}

// Account is the adapter's account in one project, with its token and its claims.
type Account struct {
	ID     string   `json:"service_account_id"`
	KeyID  string   `json:"key_id"`
	Apps   []string `json:"apps"`
	key    ed25519.PrivateKey
	token  string
	held   map[string]int // the fence of each instance
	cursor any
}

// call does a request of the contract, with a new token if there is none or the old one has expired.
func (a *Account) call(ctx context.Context, method, path, correlation string, body, answer any) error {
	headers := map[string]string{"Authorization": "Bearer " + a.token}
	if correlation != "" {
		headers["X-Correlation-ID"] = correlation
	}
	err := send(ctx, method, "/runtime"+path, headers, body, answer)
	if refusal, is := err.(*Refusal); !is || refusal.Status != 401 {
		return err
	}
	found := struct{ Access_token string }{}
	form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}}
	form.Set("assertion", assertion(a.key, a.KeyID, a.ID, "/oauth/token"))
	if err = send(ctx, "POST", "/oauth/token", nil, form, &found); err != nil {
		return err
	}
	a.token, headers["Authorization"] = found.Access_token, "Bearer "+found.Access_token
	return send(ctx, method, "/runtime"+path, headers, body, answer)
}

// poll is heartbeat, claim and news at once; without news every instance is looked at.
func (a *Account) poll(ctx context.Context, work func(string, int) bool) error {
	var news struct {
		Claims, Lost []Claim
		Changed      []string
		Cursor       any
	}
	body := object{"holder": holder, "free": 50, "wait_seconds": pollSeconds, "held": a.claims(), "after": a.cursor}
	if err := a.call(ctx, "POST", "/claims", "", body, &news); err != nil {
		return err
	}
	for _, each := range news.Lost {
		if a.held[each.Instance] == each.Fence {
			delete(a.held, each.Instance)
		}
	}
	for _, each := range news.Claims {
		if each.Fence > a.held[each.Instance] {
			a.held[each.Instance] = each.Fence
		}
		news.Changed = append(news.Changed, each.Instance)
	}
	a.cursor = news.Cursor
	for _, each := range a.claims() {
		named := len(news.Changed) == 0 || strings.Contains(strings.Join(news.Changed, " "), each.Instance)
		if named && !work(each.Instance, each.Fence) {
			a.cursor = nil // what is left undone counts as changed
		}
	}
	return nil
}

func (a *Account) claims() []Claim {
	found := []Claim{}
	for instance, fence := range a.held {
		found = append(found, Claim{instance, fence})
	}
	return found
}
